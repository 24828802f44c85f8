"""Matrices whose symmetric part is small: LipschitzRNN, equation 6."""

import numpy as np
from keras import ops


def symmetric_skew(matrix, beta, gamma):
    """S = (1 - beta) (M + M^T) + beta (M - M^T) - gamma I.

    `beta` moves S from symmetric, at 0, to skew-symmetric, at 1, and so
    narrows the range of its eigenvalues' real parts; `gamma` shifts that
    range to the left (Erichson et al. 2021, section 4).

    Args:
        matrix: float tensor (n, n), M.
        beta: float in [0, 1].
        gamma: float.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> m = np.random.rand(3, 3)
    >>> s = np.array(ops.symmetric_skew(m, beta=1.0, gamma=0.0))
    >>> bool(np.allclose(s, -s.T))
    True
    """
    matrix = ops.convert_to_tensor(matrix)
    identity = ops.cast(np.eye(matrix.shape[0]), matrix.dtype)
    # M (1 - beta + beta) and M^T (1 - beta - beta).
    return (
        matrix + (1.0 - 2.0 * beta) * ops.transpose(matrix) - gamma * identity
    )
