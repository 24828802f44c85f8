"""HiPPO: the systems x' = A x + B u that remember u, in float64.

The state of such a system is u's past, as the coefficients of its best
approximation under a measure (LSSL, appendix D). The minus sign of a stable
matrix is in A here; the paper prints some of the matrices without it (section
B.2, theorem 9, corollary D.8) and some with it (section E.2).

Theorem 9 forgets to normalise its A, so that for an order other than 0 its
state is no state of Laguerre coefficients. With lambda_n of that section, the
A that goes with its b has lambda_n / lambda_k below the diagonal, where the
paper has 1.

Windows under a Jacobi measure, theorem 8, are derived anew. Corollary D.6
replaces u at the end of the window by sum_k x_k p_k(-1). But with the full
tilting that the derivation takes, u is near omega(z) sum_k x_k p_k(z), which
is the same for the Legendre measure only, and omega is 0 or infinite at the
end for most others. None of the paper's A that were tried is a memory: at
N = 16 that for Chebyshev polynomials of the first kind has an eigenvalue of
+42, that for the second kind one of +4.3, and the state at which a constant
input would be at rest is wrong by 83 and by 86 percent (tests/test_hippo.py).

Here the window itself is followed. With z = 1 now and z = -1 at the end, its
content w(z, t) obeys d_t w = 2 d_z w and w(1, t) = u(t). For a polynomial w =
sum_n x_n p_n of degree N - 1 that is

    d_t w = 2 d_z w + 2 phi(z) (u(t) - w(1, t)),

whatever the polynomial phi exact for an input that is itself a polynomial of
degree N - 1. The HiPPO memory of the Legendre measure has phi = K(z, 1), the
reproducing kernel (Christoffel and Darboux), which is also the derivative of
a Phi that is proportional to the Jacobi polynomial P_N^(0,-1) and 1 at z = 1.
The same kernel for other exponents is proportional to the derivative of
P_N^(alpha,beta-1), and the characteristic polynomial is the sum over k of the
k-th derivative of this one, at z = 1, times s^(N-k). (Csordas, Charalambides
and Waleffe, "A new property of a class of Jacobi polynomials", 2005, prove
such sums stable.) Up to N = 64 its zeros are on the left for alpha < 1, from
N = 2 on, and no longer above. So the kernel is that of the exponents
min(alpha, 0) and max(beta, 0): stable for N = 1 too, whatever the measure, and
as near to the best approximation as the measure's own kernel is where that is
stable. Of a sine of up to 16 radians in a window, at N = 16 and for exponents
from -0.8 to 2, the error is 1.04 to 1.9 times the least possible; LegT's is
1.5 times.
"""

import math
from typing import NamedTuple

import numpy as np

MEASURES = ("legs", "legt", "lagt")

DEFAULTS = {
    "legs": {},
    "legt": {},
    "lagt": {},
    "generalized_laguerre": {"order": 0.0, "tilt": 1.0},
    "chebyshev": {"kind": 1},
    "gegenbauer": {"order": 1.0},
    "jacobi": {"alpha": 0.0, "beta": 0.0},
}


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


def hippo(measure, state_size, **parameters):
    """The transition that remembers its input, as A = P (D + T^-1) Q.

    LSSL's theorem 11 shows that legs, legt and lagt have this form. So has
    the generalised Laguerre measure, and so has a window whose measure is
    (1 + z)^beta, beta >= 0. The A of other windows is no matrix of this form:
    `hippo_matrices` gives it. (The paper has Gegenbauer's among those that
    are. Above the diagonal of that A there are blocks of rank 3, or 2 in the
    paper's own below it, and the form allows for 1.) Yet for any alpha >= 0
    the memory is that of alpha = 0 and max(beta, 0), in another basis, which
    a trained C finds by itself.

    Args:
        measure: a name from the table of `hippo_matrices`.
        state_size: integer, N.
        **parameters: those of the measure, by name.

    Returns:
        A `StructuredTransition` of float64 NumPy arrays.

    Raises:
        ValueError: if there is no such measure or no such form, or if a
            parameter is unknown or out of its range.

    Reference:
        LSSL, sections D.3 and E.2.

    Example:

    >>> from keras_linrec.ops.hippo import hippo
    >>> hippo("lagt", 3).d.tolist()
    [-0.5, -0.5, -0.5]
    >>> hippo("generalized_laguerre", 3, order=0.5, tilt=1.0).d.tolist()
    [0.0, 0.0, 0.0]
    """
    parameters = require_measure(measure, parameters)
    _require_size(state_size)
    family, *exponents = _family(measure, parameters)
    if family == "window":
        return _structured_window(measure, parameters, state_size, *exponents)
    if family == "laguerre":
        return _structured_laguerre(state_size, *exponents)
    n = np.arange(state_size, dtype="float64")
    root = np.sqrt(2 * n + 1)
    bands = _summation(state_size)
    return StructuredTransition(
        -root, -n / (2 * n + 1), root.copy(), bands, root.copy()
    )


def hippo_matrices(measure, state_size, **parameters):
    """A and B of the system x' = A x + B u that remembers u.

    | measure | parameters | what weighs the past, s ago |
    |---|---|---|
    | `"legs"` | | exp(-s), and the state holds polynomials of exp(-s) |
    | `"lagt"` | | all of it alike, for signals of finite energy |
    | `"generalized_laguerre"` | `order=0.0`, `tilt=1.0` | \
s^-order exp(-tilt s) |
    | `"legt"` | | a window of length 1, all of it alike |
    | `"chebyshev"` | `kind=1` | that window, (1 - z^2)^-1/2, or for kind 2 \
(1 - z^2)^1/2 |
    | `"gegenbauer"` | `order=1.0` | that window, (1 - z^2)^(order - 1/2) |
    | `"jacobi"` | `alpha=0.0`, `beta=0.0` | that window, (1 - z)^alpha \
(1 + z)^beta |

    Within the window z = 1 - 2 s: 1 now, -1 a time of 1 ago. A state whose
    measure is far from even (exponents of 3 and more, N of some dozens) is
    of numbers that differ by many orders of magnitude. An order of the
    Laguerre measure from 1 on, whose measure is infinite towards s = 0, is
    for signals that are 0 now.

    Args:
        measure: a name from the table.
        state_size: integer, N.
        **parameters: those of the measure, by name: `order` > -1 and `tilt`
            >= 0 for `"generalized_laguerre"` (with a negative tilt the past
            would weigh the more the longer ago it was: the n-th state of a
            constant input grows as ((1 - tilt) / (1 + tilt))^n, and from a
            tilt of -1 on the system is unstable); `order` > -1/2 for
            `"gegenbauer"`; `alpha` and `beta` > -1.

    Returns:
        NumPy arrays of float64, (N, N) and (N,).

    Raises:
        ValueError: if there is no such measure, or if a parameter is unknown
            or out of its range.

    Reference:
        LSSL, theorems 8 and 9, corollaries D.7 and D.8; with the corrections
        that the head of this file explains.

    Example:

    >>> from keras_linrec.ops.hippo import hippo_matrices
    >>> matrix, vector = hippo_matrices("chebyshev", 8, kind=2)
    >>> matrix.shape, vector.shape
    ((8, 8), (8,))
    """
    parameters = require_measure(measure, parameters)
    _require_size(state_size)
    family, *exponents = _family(measure, parameters)
    if family == "window":
        return _window_matrices(state_size, *exponents)
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
    """The past that a state remembers.

    It is, with basis functions f_n that belong to the measure,
    u(t - s) = sum_n x_n(t) f_n(s).

    Args:
        measure: a name from the table of `hippo_matrices`.
        state: array (..., N), the state x of that system.
        positions: array (points,), how long ago, s, in the system's own time:
            from 0 to 1 for a window, from 0 on else (above 0 for a Laguerre
            measure of negative order, whose approximation is infinite at 0).
        **parameters: those of the measure, by name.

    Returns:
        A NumPy array of float64, (..., points).

    Raises:
        ValueError: as `hippo_matrices`, and for positions outside the
            measure's support.

    Reference:
        LSSL, section D.1.2.

    Example: an input of 2 that has been there for long.

    >>> import numpy as np
    >>> from keras_linrec.ops.hippo import hippo_matrices
    >>> from keras_linrec.ops.hippo import reconstruct
    >>> matrix, vector = hippo_matrices("chebyshev", 8)
    >>> state = np.linalg.solve(matrix, -2 * vector)
    >>> reconstruct("chebyshev", state, [0.0, 0.3, 1.0]).round(6).tolist()
    [2.0, 2.0, 2.0]
    """
    state = np.asarray(state, dtype="float64")
    parameters = require_measure(measure, parameters)
    family, *exponents = _family(measure, parameters)
    positions = _require_positions(measure, family, positions)
    size = state.shape[-1]
    if family == "window":
        return state @ _jacobi(1 - 2 * positions, size, *exponents)
    if family == "legs":
        return state @ _jacobi(2 * np.exp(-positions) - 1, size, 0.0, 0.0)
    order, tilt = exponents
    if order < 0 and not positions.all():
        raise ValueError(
            "`positions` should be above 0 for an order below 0. Received: "
            f"positions={positions}, order={order}"
        )
    tilting = positions**order * np.exp((tilt - 1) / 2 * positions)
    return state @ _laguerre(positions, size, order, tilting)


def measure_density(measure, positions, **parameters):
    """How much the past weighs, s ago: the density of the measure.

    What `reconstruct` gives is nearest to u in the sense of this weight. Its
    integral is 1 for windows and for legs.

    Args:
        measure: a name from the table of `hippo_matrices`.
        positions: array (points,), how long ago, as in `reconstruct`.
        **parameters: those of the measure, by name.

    Returns:
        A NumPy array of float64, (points,), infinite where the density is.

    Raises:
        ValueError: as `reconstruct`.

    Reference:
        LSSL, section D.1.2: omega / chi^2 for the Laguerre measures, omega
        for the others.

    Example:

    >>> from keras_linrec.ops.hippo import measure_density
    >>> measure_density("gegenbauer", [0.0, 0.5], order=1.5).tolist()
    [0.0, 1.5]
    """
    parameters = require_measure(measure, parameters)
    family, *exponents = _family(measure, parameters)
    positions = _require_positions(measure, family, positions)
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


def require_measure(measure, parameters):
    """All parameters of a measure, or a ValueError."""
    if measure not in DEFAULTS:
        raise ValueError(
            f"`measure` should be one of {tuple(DEFAULTS)}. "
            f"Received: measure={measure}"
        )
    defaults = DEFAULTS[measure]
    for name in parameters:
        if name not in defaults:
            takes = f"those of {tuple(defaults)}" if defaults else "none"
            raise ValueError(
                f"The parameters of the measure '{measure}' should be "
                f"{takes}. Received: {name}={parameters[name]}"
            )
    parameters = {**defaults, **parameters}
    for name, value in parameters.items():
        expected, fits = _range(measure, name)
        if not (_is_number(value) and fits(value)):
            raise ValueError(
                f"`{name}` of the measure '{measure}' should be {expected}. "
                f"Received: {name}={value}"
            )
    return parameters


def _range(measure, name):
    if name == "kind":
        return "1 or 2", lambda value: value in (1, 2)
    if name == "tilt":
        return "a number from 0 on", lambda value: value >= 0
    if measure == "gegenbauer":
        return "a number above -1/2", lambda value: value > -0.5
    return "a number above -1", lambda value: value > -1


def _is_number(value):
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def _require_size(state_size):
    whole = isinstance(state_size, (int, np.integer))
    if not whole or isinstance(state_size, bool) or state_size < 1:
        raise ValueError(
            "`state_size` should be an integer of 1 or more. "
            f"Received: state_size={state_size}"
        )


def _require_positions(measure, family, positions):
    positions = np.asarray(positions, dtype="float64")
    most = 1.0 if family == "window" else np.inf
    if not ((positions >= 0) & (positions <= most)).all():
        support = "from 0 to 1" if family == "window" else "of 0 or more"
        raise ValueError(
            f"`positions` should be times {support}, how long ago, for the "
            f"measure '{measure}'. Received: positions={positions}"
        )
    return positions


def _family(measure, parameters):
    """What the measure is a case of, and its exponents there."""
    if measure == "legs":
        return ("legs",)
    if measure == "lagt":
        return "laguerre", 0.0, 0.0
    if measure == "generalized_laguerre":
        return "laguerre", parameters["order"], parameters["tilt"]
    if measure == "legt":
        return "window", 0.0, 0.0
    if measure == "jacobi":
        return "window", parameters["alpha"], parameters["beta"]
    if measure == "chebyshev":
        exponent = parameters["kind"] - 1.5
    else:
        exponent = parameters["order"] - 0.5
    return "window", exponent, exponent


def _summation(size):
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


def _structured_laguerre(size, order, tilt):
    scale, vector = _laguerre_scale(size, order)
    d = np.full(size, (tilt - 1) / 2)
    return StructuredTransition(-1 / scale, d, scale, _summation(size), vector)


def _structured_window(measure, parameters, size, alpha, beta):
    """A for the measure (1 + z)^beta, of LegT's kind.

    On and below the diagonal T^-1 has ones, above it
    (-1)^(n - k) g_n / g_k with g_n = Gamma(n + beta + 1) / n!.
    """
    if alpha != 0 or beta < 0:
        received = "".join(
            f", {name}={value}" for name, value in parameters.items()
        )
        raise ValueError(
            "`measure` should be one whose A is P (D + T^-1) Q: 'legs', "
            "'legt', 'lagt', 'generalized_laguerre' or 'jacobi' with alpha=0 "
            "and beta from 0 on; `hippo_matrices` has the A of the others. "
            f"Received: measure={measure}{received}"
        )
    n = np.arange(size, dtype="float64")
    root = np.sqrt(2 * n + beta + 1)
    above = (n + 1) / (2 * n + beta + 2)
    below = 1 - above
    above[-1] = below[-1] = 0.0
    diagonal = 1 - above
    diagonal[1:] -= above[:-1]
    return StructuredTransition(
        -root,
        np.zeros(size),
        root.copy(),
        np.stack([above, diagonal, -below]),
        root * math.sqrt(beta + 1),
    )


def _window_matrices(size, alpha, beta):
    # Gauss' quadrature of N points is exact for products of polynomials of
    # degree N - 1, and these weights are right to the last digits even where
    # they are tiny.
    nodes = _jacobi_nodes(size, alpha, beta)
    basis = _jacobi(nodes, size, alpha, beta)
    weighted = basis / (basis**2).sum(0)
    derivatives = _jacobi_derivatives(nodes, size, alpha, beta)
    # By exact arithmetic p_n' has no p_k of a degree k >= n.
    derivation = np.tril(derivatives @ weighted.T, -1)

    boundary = weighted @ _boundary_polynomial(nodes, size, alpha, beta)
    now = _jacobi(np.ones(1), size, alpha, beta)[:, 0]
    matrix = 2 * (derivation.T - boundary[:, None] * now)
    return matrix, 2 * boundary


def _boundary_polynomial(z, size, alpha, beta):
    """phi(z), the reproducing kernel K(z, 1) in a scale of its own."""
    alpha, beta = min(alpha, 0.0), max(beta, 0.0)
    now = _jacobi(np.ones(1), size, alpha, beta)[:, 0]
    at_one = size * (size + alpha + beta) / (2 * (alpha + 1))
    return at_one / (now @ now) * (now @ _jacobi(z, size, alpha, beta))


def _jacobi_coefficients(size, alpha, beta):
    """a_n, b_n of z p_n = b_(n+1) p_(n+1) + a_n p_n + b_n p_(n-1)."""
    n = np.arange(2.0, size)
    total = 2 * n + alpha + beta
    centre = (beta**2 - alpha**2) / (total * (total + 2))
    coupling = (4 * n * (n + alpha) * (n + beta) * (n + alpha + beta)) / (
        total**2 * (total + 1) * (total - 1)
    )
    # In the general form of these three a sum of exponents of 0 or -1 is
    # divided by itself.
    total = alpha + beta + 2
    first = (beta - alpha) / total
    second = (beta**2 - alpha**2) / (total * (total + 2))
    step = 4 * (alpha + 1) * (beta + 1) / (total**2 * (total + 1))
    centre = np.concatenate([[first, second], centre])[:size]
    coupling = np.sqrt(np.concatenate([[0.0, step], coupling])[:size])
    return centre, coupling


def _jacobi(z, size, alpha, beta):
    """p_n(z), (N, points), orthonormal with the measure's integral at 1."""
    centre, coupling = _jacobi_coefficients(size, alpha, beta)
    return _three_terms(z, np.ones_like(z), centre, coupling)


def _jacobi_nodes(size, alpha, beta):
    centre, coupling = _jacobi_coefficients(size, alpha, beta)
    return np.linalg.eigvalsh(np.diag(centre) + np.diag(coupling[1:], -1))


def _jacobi_derivatives(z, size, alpha, beta):
    """p_n'(z), by equation 33."""
    n = np.arange(size)[:, None]
    total = alpha + beta + 2
    mean = 4 * (alpha + 1) * (beta + 1) / (total * (total + 1))
    lower = _jacobi(z, size, alpha + 1, beta + 1)
    # The row that comes first by the shift is multiplied by n = 0.
    return np.sqrt(n * (n + alpha + beta + 1) / mean) * np.roll(lower, 1, 0)


def _laguerre(s, size, order, start):
    """p_n(s) times `start`, (N, points)."""
    n = np.arange(size)
    centre = 2 * n + order + 1
    # Negative, so that p_n(0) > 0 as in the usual definition.
    coupling = -np.sqrt(n * (n + order))
    norm = math.exp(-0.5 * math.lgamma(order + 1))
    return _three_terms(s, norm * start, centre, coupling)


def _three_terms(z, start, centre, coupling):
    rows = [np.zeros_like(z), start]
    for n in range(len(centre) - 1):
        row = (z - centre[n]) * rows[-1] - coupling[n] * rows[-2]
        rows.append(row / coupling[n + 1])
    return np.stack(rows[1:])
