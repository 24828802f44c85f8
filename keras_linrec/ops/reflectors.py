"""The reflectors of a given orthogonal or unitary matrix.

In float64 NumPy, because not every backend has float64 tensors.
"""

import numpy as np

from keras_linrec import types
from keras_linrec.validation import require_count

# How far from orthogonal a matrix may be, by the largest entry of W* W - I:
# one of some hundred rows in float32 is off by 1e-6.
_DEFECT_MAX = 1e-4
# A column counts as one of the identity if the rest of it is shorter.
_LENGTH_MIN = 1e-6


def reflectors_of(
    matrix: types.Tensor, reflections: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The Householder reflections whose product is a given matrix.

    By a QR decomposition in which R becomes the identity (Mhammedi et al.
    2017, algorithm 2). For a real matrix,

        W = H(u_1) H(u_2) ... H(u_m) diag(1, ..., 1, s)

    and for a complex one, with phases in place of the sign s,

        W = H(u_1) H(u_2) ... H(u_m) diag(exp(i theta))

    Args:
        matrix: real orthogonal or complex unitary array (n, n), W.
        reflections: integer from 1 to n, the reflections of an
            `OrthogonalRNN`. Fewer than n suffice where the rank of W - I is as
            small, for complex W that of W - diag(exp(i theta)). Columns that
            need no reflection are then zeros, which training leaves as they
            are. Defaults to `None`, n: n - 1 vectors, and the sign or the
            phases.

    Returns:
        `(reflectors, sign)`, float64 NumPy arrays, as the weights of an
        `OrthogonalRNN`: (n, m), vectors of length 1 as columns with zeros
        above the diagonal, and 1 or -1; or `(reflectors, phases)` of the
        shapes (2 n, m), real parts over imaginary parts, and (n,). m is
        `reflections`, or n - 1 where that is n.

    Raises:
        ValueError: if `matrix` is no square matrix of finite numbers, is not
            orthogonal or unitary, or needs more reflections.

    Reference:
        [Efficient Orthogonal Parametrisation of Recurrent Neural Networks
        Using Householder Reflections](https://arxiv.org/abs/1612.00188),
        appendix A.

    Example: a shift by one place.

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> shift = np.roll(np.eye(4), 1, axis=0)
    >>> reflectors, sign = ops.reflectors_of(shift)
    >>> float(sign)
    1.0
    >>> product = np.array(ops.reflection_product(reflectors))
    >>> bool(np.allclose(product * [1, 1, 1, sign], shift))
    True
    """
    matrix = _checked(matrix)
    size = len(matrix)
    require_count("reflections", reflections, optional=True)
    if reflections is not None and reflections > size:
        raise ValueError(
            f"`reflections` should be at most {size}, the rows of `matrix`. "
            f"Received: reflections={reflections}"
        )
    complete = reflections in (None, size)
    columns = size - 1 if complete else reflections
    reflectors = np.zeros((size, columns), matrix.dtype)
    rest = matrix.copy()
    for k in range(columns):
        vector = _reflector(rest[k:, k], complete)
        reflectors[k:, k] = vector
        rest[k:] -= 2 * np.outer(vector, vector.conj() @ rest[k:])
    diagonal = np.diagonal(rest)
    phases = diagonal / np.abs(diagonal)
    if np.abs(rest - np.diag(phases)).max() > _DEFECT_MAX:
        _refuse_reflections(reflections, "no diagonal matrix")
    if np.iscomplexobj(matrix):
        parts = np.concatenate([reflectors.real, reflectors.imag])
        return parts, np.angle(phases)
    if not complete and (phases < 0).any():
        _refuse_reflections(reflections, "not the identity")
    return reflectors, phases[-1]


def _reflector(column, complete):
    """u with H(u) column = (exp(i theta), 0, ..., 0), of length 1 or zeros."""
    first, others = column[0], column[1:]
    squares = np.sum(np.abs(others) ** 2)
    # Theta is zero in real numbers, where R has a positive diagonal.
    is_complex = np.iscomplexobj(column)
    phase = first / np.abs(first) if is_complex and first != 0 else 1.0
    along = (first / phase).real
    if squares <= _LENGTH_MIN**2 and along > 0:
        vector = np.zeros_like(column)
        # The paper's choice, which training can turn.
        vector[-1] = 1.0 if complete else 0.0
        return vector
    vector = column.copy()
    # along - 1 without cancellation, for a column of length 1.
    below = along - 1.0 if along <= 0 else -squares / (along + 1.0)
    vector[0] = phase * below
    return vector / np.linalg.norm(vector)


def _checked(matrix):
    """The matrix in float64 or complex128."""
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`matrix` should be square. Received: matrix.shape={matrix.shape}"
        )
    if not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(
            "`matrix` should have finite numbers, at least one. "
            f"Received: matrix={matrix}"
        )
    matrix = matrix.astype(
        "complex128" if np.iscomplexobj(matrix) else "float64"
    )
    defect = np.abs(matrix.conj().T @ matrix - np.eye(len(matrix))).max()
    if defect > _DEFECT_MAX:
        kind = "unitary" if np.iscomplexobj(matrix) else "orthogonal"
        raise ValueError(
            f"`matrix` should be {kind}. Received: a matrix W with an entry "
            f"of {defect:.1e} in W* W - I"
        )
    return matrix


def _refuse_reflections(reflections, remainder):
    raise ValueError(
        "`reflections` should be as many as `matrix` needs, at most its rows. "
        f"Received: reflections={reflections}, which leave {remainder}"
    )
