"""The state-space unit: its layer, how it responds, how it stays stable."""

from keras_linrec.layers.lssl.layer import LSSL as LSSL
