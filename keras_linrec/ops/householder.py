"""Orthogonal and unitary matrices as products of Householder reflections."""

from keras import ops

from keras_linrec import types
from keras_linrec.complex_pairs import adjoint
from keras_linrec.complex_pairs import multiply
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.ops import precision
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.ops.scan_checks import require_rank
from keras_linrec.ops.scan_checks import require_shape
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_tensors

# A real matrix is a tuple of one tensor, a complex one of two.

# Up to this many rows, a triangular matrix is inverted by products of whole
# matrices, of which blocks beside the diagonal are kept: few operations, and
# so little of the framework's overhead. 16 reflections of 128 units, forward
# and backward on PyTorch: 0.5 ms, and 1.4 if every level is split into halves.
_ONE_BY_ONE = 128


@in_any_byte_order
def reflection_product(reflectors: types.Tensor) -> types.Tensor:
    """W = H(u_1) H(u_2) ... H(u_m), H(u) = I - 2 u u^T / |u|^2.

    By the compact WY form W = I - U T^-1 U^T, T = striu(U^T U) +
    diag(U^T U) / 2 (Mhammedi et al. 2017, proposition 1). A vector of zeros
    reflects nothing: its H is the identity.

    Args:
        reflectors: float tensor (n, m), the vectors as columns. Entries of
            column j above row j are ignored and taken to be zero.

    Returns:
        A float32 tensor (n, n), or float64 if `reflectors` are.

    Raises:
        ValueError: if `reflectors` is not a matrix.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> w = np.array(ops.reflection_product(np.random.rand(5, 3)))
    >>> bool(np.allclose(w.T @ w, np.eye(5), atol=1e-5))
    True
    """
    require_tensors(reflectors=reflectors)
    reflectors = ops.convert_to_tensor(reflectors)
    require_rank("reflectors", reflectors, 2, "(n, m)")
    expansion, contraction = reflection_factors(reflectors)
    identity = ops.eye(reflectors.shape[0], dtype=expansion.dtype)
    return identity - precision.matmul(expansion, contraction)


def reflection_factors(reflectors):
    """U (n, m) and T^-1 U^T (m, n) of W = I - U T^-1 U^T.

    Args:
        reflectors: as `reflection_product` takes them.
    """
    (unit,) = unit_columns((reflectors,))
    (inverse,) = _inverse_of_triangle((unit,))
    return unit, precision.matmul(inverse, ops.transpose(unit))


@in_any_byte_order
def unitary_matrix(
    reflectors: types.Tensor, phases: types.Tensor
) -> types.Tensor:
    """W = H(u_1) ... H(u_m) diag(exp(i phases)) in real arithmetic.

    The complex n x n matrix W = A + iB as the real one [[A, -B], [B, A]],
    which maps the real parts of a vector, followed by its imaginary parts, to
    those of its image (Mhammedi et al. 2017, sections 3 and 4.3).

    Args:
        reflectors: float tensor (2 n, m): real parts, then imaginary parts,
            of the vectors as columns. In both, entries of column j above row
            j are ignored.
        phases: float tensor (n,).

    Returns:
        A float32 tensor (2 n, 2 n), or float64 if an argument is.

    Raises:
        ValueError: if shapes do not agree.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> reflectors, phases = np.random.rand(6, 2), np.random.rand(3)
    >>> w = np.array(ops.unitary_matrix(reflectors, phases))
    >>> bool(np.allclose(w.T @ w, np.eye(6), atol=1e-5))
    True
    """
    require_tensors(reflectors=reflectors, phases=phases)
    reflectors = ops.convert_to_tensor(reflectors)
    phases = ops.convert_to_tensor(phases)
    require_rank("reflectors", reflectors, 2, "(2 n, m)")
    require_shape("phases", phases, (reflectors.shape[0] // 2,))
    dtype = accumulation_dtype(reflectors, phases)
    unit = unit_columns(ops.split(ops.cast(reflectors, dtype), 2, axis=0))
    inverse = _inverse_of_triangle(unit)
    real, imag = _matmul(_matmul(unit, inverse), adjoint(unit))
    real = ops.eye(real.shape[0], dtype=dtype) - real
    phases = ops.cast(phases, dtype)
    turned = multiply((real, -imag), (cos(phases), sin(phases)))
    real, imag = turned
    return ops.concatenate(
        [
            ops.concatenate([real, -imag], axis=1),
            ops.concatenate([imag, real], axis=1),
        ],
        axis=0,
    )


def unit_columns(parts):
    """Columns scaled to length 1, with zeros above the diagonal.

    Args:
        parts: tuple of one real matrix, or of the real and imaginary parts of
            a complex one. A column of zeros stays as it is.
    """
    dtype = accumulation_dtype(*parts)
    size, count = parts[0].shape
    kept = ops.arange(0, size)[:, None] >= ops.arange(0, count)
    parts = [ops.where(kept, ops.cast(part, dtype), 0.0) for part in parts]
    # The squares of tiny or huge entries would underflow or overflow.
    largest = ops.amax(
        sum(ops.abs(part) for part in parts), axis=0, keepdims=True
    )
    largest = ops.stop_gradient(ops.where(largest > 0, largest, 1.0))
    parts = [part / largest for part in parts]
    square = sum(ops.sum(part * part, axis=0) for part in parts)
    length = ops.sqrt(ops.where(square > 0, square, 1.0))
    return tuple(part / length for part in parts)


def _matmul(a, b):
    """`a @ b` for two matrices of the same field."""
    if len(a) == 1:
        return (precision.matmul(a[0], b[0]),)
    real = precision.matmul(a[0], b[0]) - precision.matmul(a[1], b[1])
    imag = precision.matmul(a[0], b[1]) + precision.matmul(a[1], b[0])
    return real, imag


def _inverse_of_triangle(unit):
    """T^-1 = 2 (I + N)^-1, N = 2 striu(U* U), for columns of length 1.

    By products alone and without a solver, for the reason in
    `ops/algebra/inverse.py`.
    """
    place = ops.arange(0, unit[0].shape[1])
    above = place[:, None] < place
    triangle = tuple(
        ops.where(above, 2.0 * part, 0.0)
        for part in _matmul(adjoint(unit), unit)
    )
    return tuple(2.0 * part for part in _inverse(triangle))


def _inverse(triangle):
    """(I + N)^-1 for a strictly upper triangular N."""
    count = triangle[0].shape[0]
    if count > _ONE_BY_ONE:
        return _inverse_of_halves(triangle, count // 2)
    # From the inverse X of the blocks on the diagonal to that of blocks twice
    # as large: [[A, B], [0, C]]^-1 = X - X [[0, B], [0, 0]] X.
    identity = ops.eye(count, dtype=triangle[0].dtype)
    inverse = (identity, *(ops.zeros_like(identity) for _ in triangle[1:]))
    block = ops.arange(0, count)
    size = 1
    while size < count:
        one, both = block // size, block // (2 * size)
        beside = ops.logical_and(both[:, None] == both, one[:, None] != one)
        change = tuple(ops.where(beside, part, 0.0) for part in triangle)
        if size > 1:
            change = _matmul(_matmul(inverse, change), inverse)
        inverse = tuple(x - c for x, c in zip(inverse, change))
        size *= 2
    return inverse


def _inverse_of_halves(triangle, half):
    upper = _inverse(tuple(part[:half, :half] for part in triangle))
    lower = _inverse(tuple(part[half:, half:] for part in triangle))
    beside = tuple(part[:half, half:] for part in triangle)
    corner = _matmul(_matmul(upper, beside), lower)
    return tuple(
        ops.concatenate(
            [
                ops.concatenate([x, -c], axis=1),
                ops.concatenate([ops.zeros_like(ops.transpose(c)), y], axis=1),
            ],
            axis=0,
        )
        for x, c, y in zip(upper, corner, lower)
    )
