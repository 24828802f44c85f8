"""Derivatives on the current backend.

The functions to differentiate take `(tensors, constants)`, a list of tensors
and a nest of further ones, and return a scalar. JAX and TensorFlow compile the
derivative once for each set of shapes: keep the returned function, and pass
whatever changes between calls, such as a batch, in `constants`.
"""

from keras_linrec.kernels import backends


def gradient(function):
    """Return a function of `(tensors, constants)`: the list of gradients."""
    return _differentiation_of_backend().gradient(function)


def hessian_vector_product(function):
    """Return a function of `(tensors, vectors, constants)`.

    That function multiplies the Hessian with respect to `tensors` by
    `vectors`, and returns a list of tensors of the same shapes.
    """
    return _differentiation_of_backend().hessian_vector_product(function)


def _differentiation_of_backend():
    return backends.module("differentiate")
