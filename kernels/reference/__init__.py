"""The plain definition, on any backend, differentiated by the backend."""

from keras_linrec.kernels.reference.scan import scan as scan
