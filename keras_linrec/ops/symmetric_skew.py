"""Matrices with a bounded symmetric part: LipschitzRNN, equation 6."""

from keras import ops

from keras_linrec import types
from keras_linrec.ops.scan_checks import require_rank
from keras_linrec.ops.scan_checks import require_shape
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_between
from keras_linrec.validation import require_finite
from keras_linrec.validation import require_tensors


@in_any_byte_order
def symmetric_skew(
    matrix: types.Tensor, beta: types.Tensor, gamma: types.Tensor
) -> types.Tensor:
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

    Raises:
        ValueError: if `matrix` is not square, `beta` is not in [0, 1] or
            `gamma` is not finite.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> m = np.random.rand(3, 3)
    >>> s = np.array(ops.symmetric_skew(m, beta=1.0, gamma=0.0))
    >>> bool(np.allclose(s, -s.T))
    True
    """
    require_tensors(matrix=matrix)
    require_between("beta", beta, 0, 1)
    require_finite("gamma", gamma)
    matrix = ops.convert_to_tensor(matrix)
    require_rank("matrix", matrix, 2, "(n, n)")
    require_shape("matrix", matrix, (matrix.shape[0],) * 2)
    identity = ops.eye(matrix.shape[0], dtype=matrix.dtype)
    # M has the factor (1 - beta) + beta, M^T the factor (1 - beta) - beta.
    return (
        matrix + (1.0 - 2.0 * beta) * ops.transpose(matrix) - gamma * identity
    )
