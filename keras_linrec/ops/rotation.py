"""Rotation matrices from unconstrained ones; rotations as complex numbers."""

import math

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.ops.concrete_values import values_of
from keras_linrec.ops.precision import matmul
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_tensors

# On matrices of norm 2, the Taylor polynomial of degree 16 is exact to 4e-10,
# and that of degree 24 to 3e-18.
_DEGREE = 16
_DEGREE_FOR_FLOAT64 = 24
_NORM = 2.0
# Twelve squarings reach norm 8,192, where float32 resolves angles to 5e-4. Each
# costs two products and, under torch.compile, seconds of compilation.
_SQUARINGS = 12


@in_any_byte_order
def rotation_matrix(matrix: types.Tensor) -> types.Tensor:
    """The rotation P = expm(M - M^T), by scaling and squaring.

    Args:
        matrix: float tensor M, (..., size, size).

    Returns:
        A tensor of the same shape, orthogonal with determinant 1 (RotRNN,
        section 3.1, lemma 1), differentiable in M. If the absolute values in
        a row of M - M^T sum to more than 8,192, beyond which float32 cannot
        resolve angles, the result is NaN.

    Raises:
        ValueError: if the last two axes differ in size.

    Example: a quarter turn.

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.ops import rotation_matrix
    >>> quarter = rotation_matrix(
    ...     np.array([[0.0, -np.pi / 2], [0.0, 0.0]], "float32")
    ... )
    >>> quarter = keras.ops.convert_to_numpy(quarter)
    >>> np.abs(quarter.round()).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    require_tensors(matrix=matrix)
    matrix = ops.convert_to_tensor(matrix)
    shape = tuple(matrix.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(
            "`matrix` should have the shape (..., size, size). "
            f"Received: matrix.shape={shape}"
        )
    if 0 in shape:
        # No numbers have a maximum.
        return matrix
    skew = matrix - ops.swapaxes(matrix, -1, -2)
    norm = ops.amax(ops.sum(ops.abs(skew), axis=-1), axis=-1)[..., None, None]
    norm = ops.stop_gradient(norm)
    # Each matrix is scaled by a power of two of its own, which is exact.
    squarings = ops.ceil(ops.log2(ops.where(norm > _NORM, norm / _NORM, 1.0)))
    squarings = ops.cast(squarings, skew.dtype)
    result = _taylor(skew * ops.power(2.0, -squarings))
    most = _most(squarings)
    for count in range(most):
        square = matmul(result, result)
        result = ops.where(count < squarings, square, result)
    result = _orthonormalise(result)
    if most < _SQUARINGS:
        return result
    return ops.where(squarings <= _SQUARINGS, result, math.nan)


def _most(squarings):
    """The squarings that some matrix needs, or all if that cannot be read.

    Each takes 0.1 ms forward and backward in an eager call on PyTorch.
    """
    values = values_of(squarings)
    if values is None or values.size == 0:
        return _SQUARINGS
    return int(min(values.max(), _SQUARINGS))


def _taylor(matrix):
    """sum_k matrix^k / k!, by Horner's scheme in matrix^4."""
    identity = ops.broadcast_to(
        ops.eye(matrix.shape[-1], dtype=matrix.dtype), ops.shape(matrix)
    )
    square = matmul(matrix, matrix)
    cube = matmul(square, matrix)
    fourth = matmul(square, square)
    digits = _digits([identity, matrix, square, cube, fourth])
    total = digits[0]
    for digit in digits[1:]:
        total = digit + matmul(fourth, total)
    return total


def _digits(powers):
    """The coefficients of Horner's scheme, from the highest to the lowest.

    By one product: to scale and add the powers one by one takes 80 operations
    more in an eager pass of a `RotRNN`, of some 300.
    """
    dtype = keras.backend.standardize_dtype(powers[0].dtype)
    degree = _DEGREE_FOR_FLOAT64 if dtype == "float64" else _DEGREE
    shares = [
        [1.0 / math.factorial(low + offset) for offset in range(4)]
        # Only the first digit has the fourth power, the others multiply by it.
        + [1.0 / math.factorial(degree) if low == degree - 4 else 0.0]
        for low in range(degree - 4, -1, -4)
    ]
    shares = ops.convert_to_tensor(shares, dtype)
    powers = ops.stack(powers)
    shape = ops.shape(powers)
    digits = matmul(shares, ops.reshape(powers, (shape[0], -1)))
    return ops.unstack(ops.reshape(digits, (shares.shape[0], *shape[1:])))


def _orthonormalise(matrix):
    """One Newton-Schulz step, which squares the distance to orthogonality.

    Squaring s times amplifies rounding by 2^s. A stream multiplies by P and
    P^T at every step, so these errors would accumulate.
    """
    gram = matmul(ops.swapaxes(matrix, -1, -2), matrix)
    return 1.5 * matrix - 0.5 * matmul(matrix, gram)


def complex_from_pairs(vectors):
    """View the pairs (2i, 2i+1) of the last axis as complex numbers.

    Rotating a pair by theta is a multiplication by exp(i theta). If the size
    is odd, the last entry becomes a complex number with imaginary part 0.

    Args:
        vectors: float tensor, (..., size).

    Returns:
        A pair of float tensors, (..., ceil(size / 2)).
    """
    if vectors.shape[-1] % 2:
        padding = [[0, 0]] * (len(vectors.shape) - 1) + [[0, 1]]
        vectors = ops.pad(vectors, padding)
    # Not `vectors[..., 0::2]`, whose gradient XLA compiles to wrong shapes
    # where the last axis is sharded.
    shape = (*ops.shape(vectors)[:-1], vectors.shape[-1] // 2, 2)
    pairs = ops.reshape(vectors, shape)
    return pairs[..., 0], pairs[..., 1]


def pairs_from_complex(numbers, size):
    """The inverse of `complex_from_pairs`, for vectors of `size` entries."""
    interleaved = ops.stack(numbers, axis=-1)
    shape = ops.shape(interleaved)[:-2]
    vectors = ops.reshape(interleaved, (*shape, 2 * interleaved.shape[-2]))
    return vectors[..., :size]
