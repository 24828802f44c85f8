"""HiPPO: systems x' = A x + B u whose state remembers u, in float64.

The state holds the coefficients of the best approximation of u's past under a
measure (LSSL, appendix D). A includes the minus sign of a stable matrix; the
paper prints some of the matrices without it (section B.2, theorem 9, corollary
D.8) and some with it (section E.2).

Theorem 9 does not normalise its A, so that for orders other than 0 its state
does not hold Laguerre coefficients. With lambda_n of that section, the A that
belongs to its b has lambda_n / lambda_k below the diagonal, where the paper
has 1.

`hippo_windows.py` explains where windows differ from theorem 8.
"""

import math
from typing import NamedTuple

import numpy as np

from keras_linrec.ops.structured.hippo_measures import family_of
from keras_linrec.ops.structured.hippo_measures import require_measure
from keras_linrec.ops.structured.hippo_measures import require_positions
from keras_linrec.ops.structured.hippo_windows import structured_window
from keras_linrec.ops.structured.hippo_windows import window_matrices
from keras_linrec.ops.structured.orthogonal_polynomials import jacobi
from keras_linrec.ops.structured.orthogonal_polynomials import laguerre
from keras_linrec.validation import require_count


class StructuredTransition(NamedTuple):
    """x' = A x + B u with A = P (D + T^-1) Q, where T is tridiagonal.

    Attributes:
        p, d, q: arrays (N,), the diagonals of P, D and Q.
        t: array (3, N), the bands of T: row 0 the superdiagonal (its last
            entry 0), row 1 the diagonal, row 2 the subdiagonal (its last
            entry 0).
        b: array (N,), B.
    """

    p: np.ndarray
    d: np.ndarray
    q: np.ndarray
    t: np.ndarray
    b: np.ndarray


def hippo(measure, state_size, **parameters):
    """The HiPPO system of a measure with A = P (D + T^-1) Q.

    LSSL's theorem 11 shows that legs, legt and lagt have this form. So do the
    generalised Laguerre measure and windows with the measure (1 + z)^beta,
    beta >= 0. The matrices A of other windows do not; `hippo_matrices` returns
    them. (The paper counts Gegenbauer's among those that do. Above the
    diagonal of that A there are blocks of rank 3, and in the paper's own A
    blocks of rank 2 below it, where the form allows rank 1.) For any
    alpha >= 0, however, the memory equals that of alpha = 0 and max(beta, 0)
    in another basis, which a trained C can absorb.

    Args:
        measure: string, a name from the table of `hippo_matrices`.
        state_size: integer, N.
        **parameters: the measure's parameters, by name.

    Returns:
        A `StructuredTransition` of float64 NumPy arrays.

    Raises:
        ValueError: if there is no such measure, if its A does not have this
            form, or if a parameter is unknown or out of its range.

    Reference:
        LSSL, sections D.3 and E.2.

    Example:

    >>> from keras_linrec.ops.structured.hippo import hippo
    >>> hippo("lagt", 3).d.tolist()
    [-0.5, -0.5, -0.5]
    >>> hippo("generalized_laguerre", 3, order=0.5, tilt=1.0).d.tolist()
    [0.0, 0.0, 0.0]
    """
    parameters = require_measure(measure, parameters)
    require_count("state_size", state_size)
    family, *exponents = family_of(measure, parameters)
    if family == "window":
        _require_structured_window(measure, parameters, *exponents)
        _, beta = exponents
        return StructuredTransition(*structured_window(state_size, beta))
    if family == "laguerre":
        return _structured_laguerre(state_size, *exponents)
    n = np.arange(state_size, dtype="float64")
    root = np.sqrt(2 * n + 1)
    bands = _bands_of_summation(state_size)
    return StructuredTransition(
        -root, -n / (2 * n + 1), root.copy(), bands, root.copy()
    )


def hippo_matrices(measure, state_size, **parameters):
    """A and B of the HiPPO system of a measure.

    | measure | parameters | weight of the past, a time s ago |
    |---|---|---|
    | `"legs"` | | exp(-s); the basis functions are polynomials of exp(-s) |
    | `"lagt"` | | constant, for signals of finite energy |
    | `"generalized_laguerre"` | `order=0.0`, `tilt=1.0` | \
s^-order exp(-tilt s) |
    | `"legt"` | | constant in a window of length 1 |
    | `"chebyshev"` | `kind=1` | in that window, (1 - z^2)^-1/2, or for kind 2 \
(1 - z^2)^1/2 |
    | `"gegenbauer"` | `order=1.0` | in that window, (1 - z^2)^(order - 1/2) |
    | `"jacobi"` | `alpha=0.0`, `beta=0.0` | in that window, (1 - z)^alpha \
(1 + z)^beta |

    In the window, z = 1 - 2 s: 1 now, and -1 a time of 1 ago. If a measure is
    far from uniform (exponents of 3 and more, N of several dozen), the
    entries of the state differ by many orders of magnitude. A Laguerre
    measure of order 1 or more has an infinite integral near s = 0 and suits
    only signals that are 0 now.

    Args:
        measure: string, a name from the table.
        state_size: integer, N.
        **parameters: the measure's parameters, by name: `order` > -1 and
            `tilt` >= 0 for `"generalized_laguerre"` (a negative tilt would
            weigh the past more the longer ago it was: the n-th state under a
            constant input grows as ((1 - tilt) / (1 + tilt))^n, and the
            system is unstable for tilts of -1 and less); `order` > -1/2 for
            `"gegenbauer"`; `alpha` and `beta` > -1.

    Returns:
        float64 NumPy arrays `(A, B)` of shapes (N, N) and (N,).

    Raises:
        ValueError: if there is no such measure, or if a parameter is unknown
            or out of its range.

    Reference:
        LSSL, theorems 8 and 9, corollaries D.7 and D.8, corrected as the
        heads of `hippo.py` and `hippo_windows.py` explain.

    Example:

    >>> from keras_linrec.ops.structured.hippo import hippo_matrices
    >>> matrix, vector = hippo_matrices("chebyshev", 8, kind=2)
    >>> matrix.shape, vector.shape
    ((8, 8), (8,))
    """
    parameters = require_measure(measure, parameters)
    require_count("state_size", state_size)
    family, *exponents = family_of(measure, parameters)
    if family == "window":
        return window_matrices(state_size, *exponents)
    if family == "laguerre":
        order, tilt = exponents
        scale, vector = _laguerre_scale(state_size, order)
        ones = np.ones((state_size, state_size))
        matrix = np.tril(-ones, -1) * scale / scale[:, None]
        return matrix - np.eye(state_size) * (1 + tilt) / 2, vector
    n = np.arange(state_size, dtype="float64")
    root = np.sqrt(2 * n + 1)
    matrix = -np.tril(root[:, None] * root, -1) - np.diag(n + 1)
    return matrix, root


def reconstruct(measure, state, positions, **parameters):
    """Reconstruct the past that a state remembers.

        u(t - s) = sum_n x_n(t) f_n(s)

    with basis functions f_n that belong to the measure.

    Args:
        measure: string, a name from the table of `hippo_matrices`.
        state: array (..., N), the state x of that system.
        positions: array (points,), the times s ago, in units of the system's
            own time: from 0 to 1 for a window, otherwise 0 or more (above 0
            for a Laguerre measure of negative order, whose approximation is
            infinite at 0).
        **parameters: the measure's parameters, by name.

    Returns:
        A float64 NumPy array (..., points).

    Raises:
        ValueError: as `hippo_matrices`, and for positions outside the
            measure's support.

    Reference:
        LSSL, section D.1.2.

    Example: the fixed point for a constant input of 2.

    >>> import numpy as np
    >>> from keras_linrec.ops.structured.hippo import hippo_matrices
    >>> from keras_linrec.ops.structured.hippo import reconstruct
    >>> matrix, vector = hippo_matrices("chebyshev", 8)
    >>> state = np.linalg.solve(matrix, -2 * vector)
    >>> reconstruct("chebyshev", state, [0.0, 0.3, 1.0]).round(6).tolist()
    [2.0, 2.0, 2.0]
    """
    state = np.asarray(state, dtype="float64")
    parameters = require_measure(measure, parameters)
    family, *exponents = family_of(measure, parameters)
    positions = require_positions(measure, family, positions)
    size = state.shape[-1]
    if family == "window":
        return state @ jacobi(1 - 2 * positions, size, *exponents)
    if family == "legs":
        return state @ jacobi(2 * np.exp(-positions) - 1, size, 0.0, 0.0)
    order, tilt = exponents
    if order < 0 and not positions.all():
        raise ValueError(
            "`positions` should be above 0 for an order below 0. Received: "
            f"positions={positions}, order={order}"
        )
    tilting = positions**order * np.exp((tilt - 1) / 2 * positions)
    return state @ laguerre(positions, size, order, tilting)


def measure_density(measure, positions, **parameters):
    """The density of a measure: the weight of the past, a time s ago.

    `reconstruct` is the best approximation of u under this weight. The
    density integrates to 1 for windows and for legs.

    Args:
        measure: string, a name from the table of `hippo_matrices`.
        positions: array (points,), the times s ago, as in `reconstruct`.
        **parameters: the measure's parameters, by name.

    Returns:
        A float64 NumPy array (points,), with infinity where the density is
        infinite.

    Raises:
        ValueError: as `hippo_matrices`, and for positions outside the
            measure's support.

    Reference:
        LSSL, section D.1.2: omega / chi^2 for the Laguerre measures, omega
        for the others.

    Example:

    >>> from keras_linrec.ops.structured.hippo import measure_density
    >>> measure_density("gegenbauer", [0.0, 0.5], order=1.5).tolist()
    [0.0, 1.5]
    """
    parameters = require_measure(measure, parameters)
    family, *exponents = family_of(measure, parameters)
    positions = require_positions(measure, family, positions)
    if family == "legs":
        return np.exp(-positions)
    with np.errstate(divide="ignore"):
        if family == "laguerre":
            order, tilt = exponents
            return positions**-order * np.exp(-tilt * positions)
        alpha, beta = exponents
        log_integral = (
            math.lgamma(alpha + 1)
            + math.lgamma(beta + 1)
            - math.lgamma(alpha + beta + 2)
        )
        density = positions**alpha * (1 - positions) ** beta
        return density * math.exp(-log_integral)


def _require_structured_window(measure, parameters, alpha, beta):
    if alpha == 0 and beta >= 0:
        return
    received = "".join(
        f", {name}={value}" for name, value in parameters.items()
    )
    raise ValueError(
        "`measure` should be one whose A is P (D + T^-1) Q: 'legs', "
        "'legt', 'lagt', 'generalized_laguerre' or 'jacobi' with alpha=0 "
        "and beta of 0 or more; `hippo_matrices` has the A of the others. "
        f"Received: measure={measure}{received}"
    )


def _structured_laguerre(size, order, tilt):
    scale, vector = _laguerre_scale(size, order)
    d = np.full(size, (tilt - 1) / 2)
    bands = _bands_of_summation(size)
    return StructuredTransition(-1 / scale, d, scale, bands, vector)


def _bands_of_summation(size):
    """The bands of the T whose inverse has ones on and below the diagonal."""
    ones, zeros = np.ones(size), np.zeros(size)
    bands = np.stack([zeros, ones, -ones])
    bands[[0, 2], -1] = 0.0
    return bands


def _laguerre_scale(size, order):
    """lambda_0 / lambda_n and the values p_n(0), which are B."""
    n = np.arange(1.0, size)
    scale = np.cumprod(np.append(1.0, np.sqrt((n + order) / n)))
    return scale, scale * math.exp(-0.5 * math.lgamma(order + 1))
