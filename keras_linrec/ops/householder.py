"""Orthogonal and unitary matrices as products of Householder reflections."""

import numpy as np
from keras import ops

from keras_linrec.ops.precision import accumulation_dtype

# Real matrices are tuples of one tensor, complex ones of two.


def reflection_product(reflectors):
    """W = H(u_1) H(u_2) ... H(u_m), H(u) = I - 2 u u^T / |u|^2.

    By the compact WY form W = I - U T^-1 U^T, T = striu(U^T U) +
    diag(U^T U) / 2 (Mhammedi et al. 2017, proposition 1). A vector of zeros
    reflects nothing: its H is the identity.

    Args:
        reflectors: float tensor (n, m), the vectors as columns. Entries of
            column j above row j do not count: they are taken for zero.

    Returns:
        A float32 tensor (n, n), or float64 if `reflectors` are.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> w = np.array(ops.reflection_product(np.random.rand(5, 3)))
    >>> bool(np.allclose(w.T @ w, np.eye(5), atol=1e-5))
    True
    """
    expansion, contraction = reflection_factors(reflectors)
    identity = np.eye(reflectors.shape[0], dtype="float32")
    return ops.cast(identity, expansion.dtype) - expansion @ contraction


def reflection_factors(reflectors):
    """U (n, m) and T^-1 U^T (m, n) of W = I - U T^-1 U^T.

    Args:
        reflectors: as `reflection_product` takes them.
    """
    (unit,) = _unit_columns((reflectors,))
    (inverse,) = _inverse_of_triangle((unit,))
    return unit, inverse @ ops.transpose(unit)


def unitary_matrix(reflectors, phases):
    """W = H(u_1) ... H(u_m) diag(exp(i phases)) in real arithmetic.

    The complex n x n matrix W = A + iB as the real one [[A, -B], [B, A]],
    which maps the real parts of a vector, followed by its imaginary parts, to
    those of its image (Mhammedi et al. 2017, sections 3 and 4.3).

    Args:
        reflectors: float tensor (2 n, m): real parts, then imaginary parts,
            of the vectors as columns. In both, entries of column j above row
            j do not count.
        phases: float tensor (n,).

    Returns:
        A float32 tensor (2 n, 2 n), or float64 if an argument is.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> reflectors, phases = np.random.rand(6, 2), np.random.rand(3)
    >>> w = np.array(ops.unitary_matrix(reflectors, phases))
    >>> bool(np.allclose(w.T @ w, np.eye(6), atol=1e-5))
    True
    """
    dtype = accumulation_dtype(reflectors, phases)
    unit = _unit_columns(ops.split(ops.cast(reflectors, dtype), 2, axis=0))
    inverse = _inverse_of_triangle(unit)
    real, imag = _product(_product(unit, inverse), _adjoint(unit))
    size = real.shape[0]
    real = ops.cast(np.eye(size, dtype="float32"), dtype) - real
    phases = ops.cast(phases, dtype)
    turned = _multiply((real, -imag), (ops.cos(phases), ops.sin(phases)))
    real, imag = turned
    return ops.concatenate(
        [
            ops.concatenate([real, -imag], axis=1),
            ops.concatenate([imag, real], axis=1),
        ],
        axis=0,
    )


def _multiply(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _product(a, b):
    if len(a) == 1:
        return (a[0] @ b[0],)
    return a[0] @ b[0] - a[1] @ b[1], a[0] @ b[1] + a[1] @ b[0]


def _adjoint(a):
    """The conjugate transpose of the last two axes."""
    axes = (*range(len(a[0].shape) - 2), -1, -2)
    order = [axis % len(a[0].shape) for axis in axes]
    real, *imag = (ops.transpose(part, order) for part in a)
    return (real, *(-part for part in imag))


def _unit_columns(parts):
    """The vectors, of length 1, with zeros above the diagonal."""
    dtype = accumulation_dtype(*parts)
    size, count = parts[0].shape
    kept = np.tril(np.ones((size, count), bool))
    parts = [ops.where(kept, ops.cast(part, dtype), 0.0) for part in parts]
    # What is tiny or huge has a square that is neither a number nor zero.
    largest = ops.max(
        sum(ops.abs(part) for part in parts), axis=0, keepdims=True
    )
    largest = ops.stop_gradient(ops.where(largest > 0, largest, 1.0))
    parts = [part / largest for part in parts]
    square = sum(ops.sum(part * part, axis=0) for part in parts)
    length = ops.sqrt(ops.where(square > 0, square, 1.0))
    return tuple(part / length for part in parts)


def _inverse_of_triangle(unit):
    """T^-1 = 2 (I + N)^-1, N = 2 striu(U* U), for columns of length 1.

    The inverse of a triangular matrix from those of its two halves, level by
    level: products alone. No solver: LAPACK's, on JAX, can wait forever for a
    processor where there are two.
    """
    count = unit[0].shape[1]
    padded = 1 << max(count - 1, 0).bit_length()
    above = np.triu(np.full((count, count), 2.0, "float32"), 1)
    missing = padded - count
    triangle = [
        ops.pad(
            ops.cast(above, part.dtype) * part,
            [[0, missing], [0, missing]],
        )
        for part in _product(_adjoint(unit), unit)
    ]
    one = ops.ones_like(triangle[0][:, :1])[:, :, None]
    inverse = (one, *(ops.zeros_like(one) for _ in unit[1:]))
    size = 1
    while size < padded:
        inverse = _merged(inverse, _beside_diagonal(triangle, size))
        size *= 2
    # A column of zeros is its own image: whatever its row is multiplied by.
    return tuple(2.0 * part[0, :count, :count] for part in inverse)


def _beside_diagonal(triangle, size):
    """The blocks over the diagonal of each pair of blocks of a size."""
    pairs = triangle[0].shape[0] // (2 * size)
    own = np.eye(pairs, dtype="float32")[:, None, :, None]
    blocks = []
    for part in triangle:
        part = ops.reshape(part, (pairs, 2 * size, pairs, 2 * size))
        part = part[:, :size, :, size:] * ops.cast(own, part.dtype)
        blocks.append(ops.sum(part, axis=2))
    return tuple(blocks)


def _merged(inverse, beside):
    """[[X, B], [0, Y]]^-1 from X^-1 and Y^-1, for every pair of blocks."""
    upper = tuple(part[0::2] for part in inverse)
    lower = tuple(part[1::2] for part in inverse)
    corner = _product(_product(upper, beside), lower)
    return tuple(
        ops.concatenate(
            [
                ops.concatenate([x, -c], axis=2),
                ops.concatenate([ops.zeros_like(c), y], axis=2),
            ],
            axis=1,
        )
        for x, c, y in zip(upper, corner, lower)
    )
