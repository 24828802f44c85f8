"""Matrices with a bounded symmetric part: LipschitzRNN, equation 6."""

import numpy as np
from keras import ops


def symmetric_skew(matrix, beta, gamma):
    """S = (1 - beta) (M + M^T) + beta (M - M^T) - gamma I.

    `beta` interpolates between a symmetric S, at 0, and a skew-symmetric one,
    at 1, which narrows the range of the real parts of S's eigenvalues;
    `gamma` shifts that range to the left (Erichson et al. 2021, section 4).

    Args:
        matrix: float tensor (n, n), M.
        beta: float in [0, 1].
        gamma: float.

    Returns:
        A tensor (n, n).

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
    # M has the factor (1 - beta) + beta, M^T the factor (1 - beta) - beta.
    return (
        matrix + (1.0 - 2.0 * beta) * ops.transpose(matrix) - gamma * identity
    )
