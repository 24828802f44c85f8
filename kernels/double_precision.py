"""Functions that Keras computes in float32 on JAX, of float64 in float64.

Elsewhere they are those of `keras.ops`.
"""

import importlib

import keras
from keras import ops


def cos(angle):
    """`keras.ops.cos` that keeps float64."""
    return _module().cos(angle)


def sin(angle):
    """`keras.ops.sin` that keeps float64."""
    return _module().sin(angle)


def tanh(number):
    """`keras.ops.tanh` that keeps float64."""
    return _module().tanh(number)


def _module():
    if keras.backend.backend() != "jax":
        return ops
    return importlib.import_module(f"{__package__}.jax.double_precision")
