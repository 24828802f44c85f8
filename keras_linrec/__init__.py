"""Recurrent layers for very long sequences, on Keras 3."""

from keras_linrec import activations as activations
from keras_linrec import analysis as analysis
from keras_linrec import config as config
from keras_linrec import constraints as constraints
from keras_linrec import initializers as initializers
from keras_linrec import kernels as kernels
from keras_linrec import layers as layers
from keras_linrec import models as models
from keras_linrec import ops as ops
from keras_linrec import optimizers as optimizers
from keras_linrec import saving as saving
from keras_linrec.export import export_step as export_step
from keras_linrec.version import __version__ as __version__
