"""Derivatives on whichever backend runs.

A function here takes `(tensors, constants)`, a list of tensors and a nest of
further ones, and returns a scalar. What it becomes is compiled, on JAX and
TensorFlow, once for each set of shapes: keep it, and give what changes from
call to call, such as a batch, among the constants.
"""

import importlib

import keras

from keras_linrec import kernels


def gradient(function):
    """A function of `(tensors, constants)`: a list of gradients."""
    return _differentiate().gradient(function)


def hessian_vector_product(function):
    """A function of `(tensors, vectors, constants)`.

    It returns the product of the Hessian with regard to `tensors`, at
    `tensors`, with `vectors`, as a list of the same shapes.
    """
    return _differentiate().hessian_vector_product(function)


def _differentiate():
    backend = keras.backend.backend()
    return importlib.import_module(
        f"{kernels.__name__}.{backend}.differentiate"
    )
