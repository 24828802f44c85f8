"""Stability certificates."""

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_linrec.analysis._matrices import are_finite
from keras_linrec.analysis._matrices import eigenvalues
from keras_linrec.analysis._matrices import unit_matrices
from keras_linrec.analysis.spectra import real_parts
from keras_linrec.layers.lipschitz_rnn.stability import LIPSCHITZ_CONSTANTS
from keras_linrec.layers.lipschitz_rnn.stability import ROOM
from keras_linrec.validation import plain
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool

# In float32, numbers below this share of the largest are rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class StabilityCertificate:
    """The quantities of theorem 1 for h' = A h + sigma(W h + U x + b).

    A_sym = (A + A^T) / 2; W_sym and W_skew are the symmetric and the
    skew-symmetric part of W, and M is the Lipschitz constant of sigma. Values
    within rounding of zero count as zero. `print` shows the verdict in words.

    Attributes:
        largest_symmetric_eigenvalue: of A_sym.
        smallest_symmetric_singular_value: of A_sym.
        largest_recurrent_singular_value: of W.
        smallest_recurrent_singular_value: of W. The theorem requires a
            nonsingular W, though case (a) holds without this.
        largest_recurrent_eigenvalue: of W + W^T.
        smallest_product_eigenvalue: of A^T W + W^T A.
        smallest_corrected_eigenvalue: of A^T W_sym + W_sym A
            - M / 2 W_skew W_skew^T.
        largest_sector_eigenvalue: of (A + M / 2 W)_sym + (N + M^2 / 4 W^T
            N^-1 W) / 2, the least found over positive diagonal N.
        largest_real_part_of_linear_matrix: over the eigenvalues of A.
        largest_real_part_of_recurrent_matrix: over the eigenvalues of W.
        lipschitz_constant: M.
        monotone: whether sigma is nondecreasing.
        rounding: the largest magnitude that counts as zero for an eigenvalue
            of A, W or their sums.
        step_size: of Euler's or the midpoint method, or `None`.
        step_factor: where it is below 1, each step of the solver multiplies
            the distance between two trajectories of the discrete unit under
            the same inputs by at most this factor. `None` for other solvers,
            and for the midpoint method if sigma is not monotone.
        gated: whether h' is multiplied by a gate. The theorem does not cover
            gates, so no case holds then.
    """

    largest_symmetric_eigenvalue: float
    smallest_symmetric_singular_value: float
    largest_recurrent_singular_value: float
    smallest_recurrent_singular_value: float
    largest_recurrent_eigenvalue: float
    smallest_product_eigenvalue: float
    smallest_corrected_eigenvalue: float
    largest_sector_eigenvalue: float
    largest_real_part_of_linear_matrix: float
    largest_real_part_of_recurrent_matrix: float
    lipschitz_constant: float
    monotone: bool
    rounding: float
    step_size: float | None = None
    step_factor: float | None = None
    gated: bool = False

    @property
    def case_a(self):
        """Case (a): A decays faster than sigma(W h) can grow.

        With V = |h|^2 / 2 as Lyapunov function, W may be singular.
        """
        growth = self.lipschitz_constant * self.largest_recurrent_singular_value
        decay = self.smallest_symmetric_singular_value
        return self._linear_part_decays and decay > growth + self.rounding

    @property
    def case_b_as_printed(self):
        """Case (b) as printed, which is not sufficient: see `case_b`."""
        return (
            self._both_decay and self.smallest_product_eigenvalue > self._square
        )

    @property
    def case_b(self):
        """Case (b), corrected: both parts decay, in directions that agree.

        The proof in the paper takes an infimum over real vectors where it
        needs complex ones, and so holds for symmetric W only; there are
        unstable counterexamples otherwise. The corrected condition makes the
        paper's Lyapunov function, -h^T W_sym h, decrease: A^T W_sym + W_sym A
        - M / 2 W_skew W_skew^T is positive definite. For a symmetric W it is
        the paper's condition.
        """
        return (
            self._both_decay
            and self.smallest_corrected_eigenvalue > self._square
        )

    @property
    def case_c(self):
        """Not in the paper: case (a) for a monotone sigma, weakened.

        The slopes of sigma lie in [0, M], so that the Jacobian is A + M / 2 W
        + M / 2 E W with a diagonal E of entries in [-1, 1]. For v = M / 2 W h
        and any positive diagonal N, h^T E v <= (h^T N h + v^T N^-1 v) / 2.
        If `largest_sector_eigenvalue` is negative, the distance of any two
        trajectories under the same inputs therefore decays at that rate. Case
        (a) implies this, for N = M / 2 |W| I. `LipschitzRNN` with
        `stable_transition=True` fulfils it for any weights.
        """
        return (
            self.monotone
            and not self.gated
            and self.largest_sector_eigenvalue < -self.rounding
        )

    @property
    def stable(self):
        """Whether every equilibrium is certified globally exponentially stable.

        The conditions are sufficient, not necessary.
        """
        return self.case_a or self.case_b or self.case_c

    @property
    def step_stable(self):
        """Whether a step of the solver contracts; `None` where unknown."""
        if self.step_factor is None:
            return None
        return self.step_factor < 1 - _ROUNDING

    @property
    def _linear_part_decays(self):
        return (
            not self.gated
            and self.largest_symmetric_eigenvalue < -self.rounding
        )

    @property
    def _both_decay(self):
        return (
            self.monotone
            and self._linear_part_decays
            and self.largest_recurrent_eigenvalue < -self.rounding
        )

    @property
    def _square(self):
        """The `rounding` of eigenvalues of a product of two matrices."""
        return self.rounding**2 / _ROUNDING

    def __str__(self):
        lines = [
            self._verdict(),
            f"  largest eigenvalue of A_sym: "
            f"{self.largest_symmetric_eigenvalue:.4g}, should be negative",
            f"  (a) {_word(self.case_a)}: sigma_min(A_sym) = "
            f"{self.smallest_symmetric_singular_value:.4g} should exceed M "
            f"sigma_max(W) = {self.lipschitz_constant:.4g} * "
            f"{self.largest_recurrent_singular_value:.4g}",
            f"  (b) {_word(self.case_b)}: sigma "
            f"{'is monotone' if self.monotone else 'is not monotone'}; "
            f"largest eigenvalue of W + W^T: "
            f"{self.largest_recurrent_eigenvalue:.4g}, should be negative; "
            f"smallest eigenvalue of A^T W_sym + W_sym A - M / 2 W_skew "
            f"W_skew^T: {self.smallest_corrected_eigenvalue:.4g}, should be "
            f"positive (of A^T W + W^T A: "
            f"{self.smallest_product_eigenvalue:.4g})",
            f"  (c) {_word(self.case_c)}: largest eigenvalue of (A + M / 2 "
            f"W)_sym + (N + M^2 / 4 W^T N^-1 W) / 2: "
            f"{self.largest_sector_eigenvalue:.4g}, should be negative",
            f"  smallest singular value of W: "
            f"{self.smallest_recurrent_singular_value:.4g}",
        ]
        if self.step_factor is not None:
            lines.append(
                f"  a step of {self.step_size:.4g} multiplies the distance "
                "between two trajectories by at most "
                f"{self.step_factor:.6g}, which should be below 1"
            )
        return "\n".join(lines)

    def _verdict(self):
        if self.stable:
            cases = [
                ("a", self.case_a),
                ("b", self.case_b),
                ("c", self.case_c),
            ]
            held = ", ".join(f"({name})" for name, holds in cases if holds)
            return f"Globally exponentially stable, by case {held}."
        if self.gated:
            return "No certificate: theorem 1 does not cover gated units."
        return "No certificate: no case holds, which proves nothing."


def stability_certificate(
    layer_or_matrices: Any,
    lipschitz_constant: float | None = None,
    monotone: bool | None = None,
) -> StabilityCertificate:
    """The stability certificate of a unit h' = A h + sigma(W h + U x + b).

    Theorem 1 of the paper: an equilibrium is globally exponentially stable if
    A_sym = (A + A^T) / 2 is negative definite and either

        (a) sigma_min(A_sym) > M sigma_max(W), or
        (b) sigma is nondecreasing, W + W^T is negative definite and
            A^T W + W^T A is positive definite,

    where sigma is M-Lipschitz. As printed, (b) holds for symmetric W only.
    The certificate's `case_b` is a corrected condition for any W;
    `case_b_as_printed` is the paper's. `case_c`, which the paper does not
    have, holds wherever (a) does and sigma is monotone.

    Args:
        layer_or_matrices: a built `LipschitzRNN`; another built layer with
            the methods `linear_matrix()` and `recurrent_matrix()`, where A is
            `layer.alpha` times the former, or zero if `layer.alpha` is 0 or
            missing; or a pair `(A, W)` of matrices (units, units).
        lipschitz_constant: positive float, M. Defaults to `None`: that of the
            layer's activation, or 1 for matrices.
        monotone: boolean, whether sigma is nondecreasing. Defaults to `None`:
            as for the layer's activation, or `True` for matrices.

    Returns:
        A `StabilityCertificate`. For a layer with the solver `"euler"` or
        `"rk2"`, it also tells whether the discrete unit contracts, for
        `time_deltas` of 1.

    Raises:
        ValueError: if matrices differ in shape, are complex or not finite, the
            layer is not built or has no such matrices, its activation is
            unknown and one of the other arguments is `None`, or
            `lipschitz_constant` is not positive.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 3 and appendix A.1.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.analysis import stability_certificate
    >>> matrices = -2 * np.eye(3), np.eye(3)
    >>> certificate = stability_certificate(matrices)
    >>> certificate.case_a, certificate.case_b, certificate.stable
    (True, False, True)
    >>> print(str(certificate).splitlines()[0])
    Globally exponentially stable, by case (a), (c).
    """
    linear, recurrent = unit_matrices(layer_or_matrices)
    if not are_finite((linear, recurrent)):
        raise ValueError(
            "A and W of `layer_or_matrices` should be finite. Received: "
            f"A={linear}, W={recurrent}"
        )
    lipschitz_constant, monotone = _activation_facts(
        layer_or_matrices, lipschitz_constant, monotone
    )
    symmetric = (linear + linear.T) / 2
    singular_values = np.linalg.svd(recurrent, compute_uv=False)
    size = max(np.linalg.norm(linear, 2), singular_values[0])
    product = linear.T @ recurrent
    growth = lipschitz_constant * recurrent
    step_size = _step_size(layer_or_matrices)
    return StabilityCertificate(
        largest_symmetric_eigenvalue=eigenvalues(symmetric)[-1],
        smallest_symmetric_singular_value=float(
            np.abs(eigenvalues(symmetric)).min()
        ),
        largest_recurrent_singular_value=float(singular_values[0]),
        smallest_recurrent_singular_value=float(singular_values[-1]),
        largest_recurrent_eigenvalue=eigenvalues(recurrent + recurrent.T)[-1],
        smallest_product_eigenvalue=eigenvalues(product + product.T)[0],
        smallest_corrected_eigenvalue=_smallest_corrected_eigenvalue(
            linear, recurrent, lipschitz_constant
        ),
        largest_sector_eigenvalue=_largest_sector_eigenvalue(linear, growth),
        largest_real_part_of_linear_matrix=float(real_parts(linear)[-1]),
        largest_real_part_of_recurrent_matrix=float(real_parts(recurrent)[-1]),
        lipschitz_constant=lipschitz_constant,
        monotone=monotone,
        rounding=_ROUNDING * float(size),
        step_size=step_size,
        step_factor=_step_factor(
            linear,
            growth,
            step_size,
            getattr(layer_or_matrices, "solver", None),
            monotone,
        ),
        gated=_is_gated(layer_or_matrices),
    )


def _smallest_corrected_eigenvalue(linear, recurrent, lipschitz_constant):
    # With V = -h^T W_sym h and u the difference in sigma, V' = -h^T (A^T W_sym
    # + W_sym A) h - 2 h^T W_sym u. For v = W h, v^T u >= |u|^2 / M and
    # h^T W_sym u = v^T u + h^T W_skew u; the worst u contributes
    # M / 2 |W_skew^T h|^2.
    symmetric = (recurrent + recurrent.T) / 2
    skew = (recurrent - recurrent.T) / 2
    product = linear.T @ symmetric
    worst = lipschitz_constant / 2 * skew @ skew.T
    return eigenvalues(product + product.T - worst)[0]


def _largest_sector_eigenvalue(linear, growth):
    centred, half = linear + growth / 2, growth / 2
    symmetric = (centred + centred.T) / 2

    def largest(nu):
        share = half.T @ (half / nu[:, None])
        return np.linalg.eigvalsh(symmetric + (np.diag(nu) + share) / 2)[-1]

    return _smallest_over_nu(largest, half)


def _step_factor(linear, growth, step_size, solver, monotone):
    if step_size is None:
        return None
    identity = np.eye(len(linear))
    if not monotone:
        if solver != "euler":
            return None
        decay = np.linalg.norm(identity + step_size * linear, 2)
        return float(decay + step_size * np.linalg.norm(growth, 2))
    # See the proof in `ops.contractive_pair`.
    room = ROOM[solver]
    centred = identity + step_size * (linear + growth / 2)
    half = room * step_size / 2 * growth

    def largest(nu):
        # c_i = nu_i / (1 + nu_i).
        form = centred.T @ ((1 + nu)[:, None] * centred)
        form += half.T @ ((1 + 1 / nu)[:, None] * half)
        return np.linalg.eigvalsh(form)[-1]

    factor = _smallest_over_nu(largest, half, solver == "euler") ** 0.5
    return factor if solver == "euler" else (1 + factor) / 2


def _smallest_over_nu(largest, half, by_rows=True):
    """The least `largest(nu)` over multiples of two choices of nu."""
    rows = np.linalg.norm(half, axis=1)
    mean = np.full_like(rows, np.sqrt(np.mean(rows**2)))
    # Positive, W = 0 included.
    least = 1e-9 + 1e-6 * mean
    starts = (mean, rows) if by_rows else (mean,)
    return min(_smallest_multiple(largest, nu + least) for nu in starts)


def _smallest_multiple(function, vector, low=-7.0, high=7.0):
    """The least value at e^x times a vector, by golden section.

    Args:
        function: of a vector, convex.
        vector: array, positive.
        low, high: floats, the ends of the search for x.
    """

    def at(log):
        return function(math.exp(log) * vector)

    share = (math.sqrt(5) - 1) / 2
    points = [high - share * (high - low), low + share * (high - low)]
    values = [at(point) for point in points]
    for _ in range(40):
        if values[0] < values[1]:
            high, points[1], values[1] = points[1], points[0], values[0]
            points[0] = high - share * (high - low)
            values[0] = at(points[0])
        else:
            low, points[0], values[0] = points[0], points[1], values[1]
            points[1] = low + share * (high - low)
            values[1] = at(points[1])
    return float(min(values))


def require_activation_facts(lipschitz_constant, monotone):
    """Raise unless they can be what a user knows of an activation."""
    require_bool("monotone", monotone, optional=True)
    if lipschitz_constant is not None:
        require_between(
            "lipschitz_constant", plain(lipschitz_constant), 0, math.inf, "()"
        )


def _activation_facts(layer_or_matrices, lipschitz_constant, monotone):
    require_activation_facts(lipschitz_constant, monotone)
    known = 1.0, True
    if hasattr(layer_or_matrices, "activation"):
        name = getattr(layer_or_matrices.activation, "__name__", None)
        known = LIPSCHITZ_CONSTANTS.get(name)
    if known is None and None in (lipschitz_constant, monotone):
        raise ValueError(
            "The Lipschitz constant of the layer's activation is unknown: give "
            "`lipschitz_constant` and `monotone`. Received: "
            f"layer.activation={layer_or_matrices.activation}"
        )
    if lipschitz_constant is None:
        lipschitz_constant = known[0]
    monotone = known[1] if monotone is None else monotone
    return float(lipschitz_constant), bool(monotone)


def _step_size(layer):
    if getattr(layer, "solver", None) not in ROOM or _is_gated(layer):
        return None
    if getattr(layer, "log_step_size", None) is None:
        return float(layer.step_size)
    return float(np.exp(keras.ops.convert_to_numpy(layer.log_step_size)))


def _is_gated(layer):
    return bool(getattr(layer, "gated", False))


def _word(holds):
    return "holds" if holds else "does not hold"
