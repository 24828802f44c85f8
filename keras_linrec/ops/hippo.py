"""The HiPPO matrices as A = P (D + T^-1) Q, stable, in float64.

LSSL, theorem 11, shows that its three measures have this form. The minus sign
of a stable matrix is in P; the paper prints some of the matrices without it
(section B.2, corollary D.8) and some with it (section E.2).
"""

from typing import NamedTuple

import numpy as np

MEASURES = ("legs", "legt", "lagt")


class StructuredTransition(NamedTuple):
    """x' = A x + B u with A = P (D + T^-1) Q, each vector of N entries.

    The bands of the tridiagonal T are the rows of a (3, N) array: the
    superdiagonal (its last entry 0), the diagonal, and the subdiagonal (its
    last entry 0).
    """

    p: np.ndarray
    d: np.ndarray
    q: np.ndarray
    t: np.ndarray
    b: np.ndarray


def hippo(measure, state_size):
    """The transition that remembers its input under a measure.

    Args:
        measure: `"legs"` (all of the past, weighed alike), `"legt"` (a window
            of length 1) or `"lagt"` (exponentially decaying).
        state_size: integer, N.

    Returns:
        A `StructuredTransition` of float64 NumPy arrays.

    Raises:
        ValueError: if there is no such measure.

    Example:

    >>> from keras_linrec.ops.hippo import hippo
    >>> hippo("lagt", 3).d.tolist()
    [-0.5, -0.5, -0.5]
    """
    if measure not in MEASURES:
        raise ValueError(
            f"`measure` should be one of {MEASURES}. "
            f"Received: measure={measure}"
        )
    n = np.arange(state_size, dtype="float64")
    root = np.sqrt(2 * n + 1)
    ones, zeros = np.ones(state_size), np.zeros(state_size)
    if measure == "legt":
        # Of the matrix of ones with alternating signs above the diagonal,
        # half the inverse's diagonal is at its two ends.
        ends = (n == 0) * 0.5 + (n == state_size - 1) * 0.5
        bands = np.stack([0.5 * ones, ends, -0.5 * ones])
        d, scale = zeros, root
    else:
        bands = np.stack([zeros, ones, -ones])
        d, scale = {
            "legs": (-n / (2 * n + 1), root),
            "lagt": (-0.5 * ones, ones),
        }[measure]
    bands[[0, 2], -1] = 0.0
    return StructuredTransition(-scale, d, scale.copy(), bands, scale.copy())
