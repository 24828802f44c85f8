"""Functions that Keras computes in float32 on JAX, of float64 in float64.

Elsewhere they are those of `keras.ops`.
"""

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
    # The one import of a framework outside of `kernels`: what Keras lacks.
    import jax.numpy

    return jax.numpy
