"""Elementary functions that keep float64 on every backend.

On JAX, Keras computes these in float32; on the other backends they are those
of `keras.ops`.
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
    # The only framework import outside `kernels`: Keras has no equivalent.
    import jax.numpy

    return jax.numpy
