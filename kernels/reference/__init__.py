"""The plain definition, on any backend; the backend differentiates it."""

from keras_linrec.kernels.reference.scan import scan as scan
