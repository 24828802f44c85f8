"""Elementary functions that keep float64 on every backend.

Keras computes some of them in float32 on one backend or another; on the others
they are those of `keras.ops`.
"""

import math

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


def product(sequences, matrix):
    """`sequences @ matrix`, over the last axis of the sequences.

    `keras.ops.matmul` computes it in float32 on PyTorch. TensorFlow's own
    operator computes the gradient of the matrix for every row of the batch and
    adds them up: forward and backward, (128, 4, 4096) by (4096, 256) takes 570
    ms instead of 23.

    Args:
        sequences: float tensor (..., features).
        matrix: float tensor (features, units).
    """
    if keras.backend.backend() == "tensorflow":
        return ops.matmul(sequences, matrix)
    return sequences @ matrix


def mean(tensor, axis=None):
    """`keras.ops.mean` that keeps float64, of a float tensor.

    Args:
        tensor: float tensor.
        axis: integer. Defaults to `None`, all axes.
    """
    if keras.backend.standardize_dtype(tensor.dtype) != "float64":
        return ops.mean(tensor, axis=axis)
    size = ops.size(tensor) if axis is None else ops.shape(tensor)[axis]
    return ops.sum(tensor, axis=axis) / ops.cast(size, "float64")


def maximum(one, other):
    """`keras.ops.maximum` that keeps float64, of two float tensors."""
    if keras.backend.standardize_dtype(one.dtype) != "float64":
        return ops.maximum(one, other)
    return ops.amax(ops.stack([one, other]), axis=0)


def cumulative_sum(tensor, axis):
    """`keras.ops.cumsum` that keeps float64, of a float tensor."""
    if keras.backend.backend() == "torch":
        return tensor.cumsum(axis)
    return ops.cumsum(tensor, axis=axis)


def activate(activation, numbers):
    """`activation(numbers)` that keeps float64.

    Args:
        activation: function of a tensor, such as one of `keras.activations`.
        numbers: float tensor.
    """
    if keras.backend.standardize_dtype(numbers.dtype) == "float64":
        substitutes = _SUBSTITUTES.get(keras.backend.backend(), {})
        activation = substitutes.get(activation, activation)
    return activation(numbers)


def leaky_relu(number, negative_slope=0.2):
    """`keras.activations.leaky_relu` that keeps float64."""
    return ops.where(number > 0, number, negative_slope * number)


def _gelu(number):
    return 0.5 * number * (1.0 + ops.erf(math.sqrt(0.5) * number))


def _softplus(number):
    # Not `ops.abs`, with whose slope at 0 the softplus would not have 1/2.
    magnitude = ops.where(number > 0, number, -number)
    return ops.relu(number) + ops.log1p(ops.exp(-magnitude))


def _hard_sigmoid(number):
    return ops.clip(number / 6.0 + 0.5, 0.0, 1.0)


# By backend, the activations that Keras 3.15 computes in float32: tanh is off
# by up to 2e-7 on JAX; on TensorFlow GELU by 5e-9, because of its sqrt(2), and
# the leaky ReLU by 3e-9, because of its slope. PyTorch's softplus is the
# identity above 20, which is off by 6e-11, and the slope of its hard sigmoid is
# rounded to float32.
_SUBSTITUTES = {
    "jax": {keras.activations.tanh: tanh},
    "tensorflow": {
        keras.activations.gelu: _gelu,
        keras.activations.leaky_relu: leaky_relu,
    },
    "torch": {
        keras.activations.softplus: _softplus,
        keras.activations.hard_sigmoid: _hard_sigmoid,
    },
}


def _module():
    if keras.backend.backend() != "jax":
        return ops
    # The only framework import outside `kernels`: Keras has no equivalent.
    import jax.numpy

    return jax.numpy
