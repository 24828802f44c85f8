"""The normal part of HiPPO's A, whose eigenvectors are orthogonal."""

import numpy as np

from keras_linrec.ops.structured.hippo import hippo_matrices


def normal_part(size):
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS.

    A + p p^T with p_n = sqrt(n + 1/2) is -1/2 and a skew-symmetric matrix. Of
    each conjugate pair of eigenvalues, the one above the real axis is
    returned.

    Args:
        size: integer, even, N.

    Returns:
        float64 NumPy arrays `(eigenvalues, eigenvectors)`, complex, (N / 2,)
        and (N, N / 2), by rising imaginary part. The eigenvectors have norm 1.

    Reference:
        S5, sections 3.3 and B.1; S4D, section 4.

    Example:

    >>> from keras_linrec.ops.structured.hippo_normal import normal_part
    >>> eigenvalues, _ = normal_part(4)
    >>> eigenvalues.round(4).tolist()
    [(-0.5+0.5565j), (-0.5+4.6033j)]
    """
    matrix, vector = hippo_matrices("legs", size)
    low_rank = vector / np.sqrt(2)
    skew = matrix + np.outer(low_rank, low_rank) + np.eye(size) / 2
    imag, vectors = np.linalg.eigh(-1j * skew)
    half = size // 2
    return -0.5 + 1j * imag[half:], vectors[:, half:]
