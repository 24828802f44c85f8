"""The inverse of a matrix.

On JAX no factorisation is used: with jaxlib 0.10.2 on 2 CPU cores, a program
with two independent calls of `jax.numpy.linalg.solve`, each on 64 matrices of
64 rows, was seen to deadlock when called repeatedly, even without a gradient.
"""

import math

import keras
from keras import ops

from keras_linrec.ops import exportable
from keras_linrec.ops import precision

# They suffice for 256 rows and condition numbers up to 1e4 in float32, and up
# to 1e13 in float64.
_STEPS = {"float32": 40, "float64": 100}


def inverse(matrix):
    """The inverse of a well-conditioned matrix, on every backend.

    On PyTorch LAPACK computes it. The other backends, and files whose format
    may have no factorisations, as within `portable_kernels`, use Newton's
    iteration
    X <- X (2 I - M X), which needs only products and converges from
    X = M^T / (|M|_1 |M|_inf) for every invertible matrix. Its relative error
    is about 1e-8 times the condition number in float32, and 1e-17 times in
    float64.

    Args:
        matrix: float tensor M, (..., size, size).

    Returns:
        A tensor of the same shape, differentiable (up to the third order if
        by the iteration). If M is singular, or if its condition number, with
        columns scaled to the same norm, exceeds about 1e5 in float32 or 1e12
        in float64, PyTorch raises or returns what LAPACK does, and the
        iteration returns NaN.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.ops.algebra.inverse import inverse
    >>> result = inverse(np.array([[2.0, 1.0], [0.0, 4.0]], "float32"))
    >>> keras.ops.convert_to_numpy(result).round(6).tolist()
    [[0.5, -0.125], [0.0, 0.25]]
    """
    matrix = ops.convert_to_tensor(matrix)
    if keras.backend.backend() == "torch" and exportable.has_factorisations():
        # `torch.compile` would unroll the iteration, which takes 170 s.
        return ops.inv(matrix)
    return by_iteration(matrix)


def by_iteration(matrix):
    """`inverse` by Newton's iteration, on any backend."""
    norms = ops.sqrt(ops.sum(ops.square(matrix), axis=-2, keepdims=True))
    scale = ops.stop_gradient(1.0 / ops.where(norms > 0.0, norms, 1.0))
    balanced = matrix * scale
    fixed = ops.stop_gradient(balanced)
    twice = 2.0 * ops.eye(matrix.shape[-1], dtype=matrix.dtype)

    def improved(matrix, guess):
        rest = twice - precision.matmul(matrix, guess)
        return precision.matmul(guess, rest)

    steps = _STEPS[keras.backend.standardize_dtype(matrix.dtype)]
    guess = _start(fixed)
    if exportable.by_steps(steps):
        # LiteRT's converter makes NaN of a loop over constants.
        for _ in range(steps):
            guess = improved(fixed, guess)
    else:
        guess = ops.fori_loop(
            0, steps, lambda _, guess: improved(fixed, guess), guess
        )
    guess = ops.stop_gradient(guess)
    # Each step squares the error. Only these two steps are differentiated, so
    # derivatives up to the third order are exact.
    for _ in range(2):
        guess = improved(balanced, guess)
    identity = precision.matmul(fixed, guess)
    residual = ops.amax(ops.abs(identity - 0.5 * twice), axis=(-2, -1))
    converged = ops.stop_gradient(residual)[..., None, None] < 0.01
    return ops.where(
        converged,
        guess * ops.swapaxes(scale, -1, -2),
        ops.cast(math.nan, matrix.dtype),
    )


def _start(matrix):
    size = ops.abs(matrix)
    columns = ops.amax(ops.sum(size, axis=-2), axis=-1)
    rows = ops.amax(ops.sum(size, axis=-1), axis=-1)
    norms = (columns * rows)[..., None, None]
    transposed = ops.swapaxes(matrix, -1, -2)
    return transposed / ops.where(norms > 0.0, norms, 1.0)
