"""Stability certificates."""

import math
from dataclasses import dataclass

import keras
import numpy as np

from keras_linrec.analysis._matrices import eigenvalues
from keras_linrec.analysis._matrices import unit_matrices
from keras_linrec.analysis.spectra import real_parts

# In float32, numbers below this share of the largest are rounding.
_ROUNDING = 1e-6

# By the name of a Keras activation: its Lipschitz constant, and whether it is
# monotonically nondecreasing. Leaky ReLUs are assumed to have slopes between 0
# and 1.
_ACTIVATIONS = {
    "elu": (1.0, True),
    "hard_sigmoid": (1 / 6, True),
    "hard_tanh": (1.0, True),
    "leaky_relu": (1.0, True),
    "linear": (1.0, True),
    "log_sigmoid": (1.0, True),
    "oplu": (1.0, False),
    "relu": (1.0, True),
    "relu6": (1.0, True),
    "sigmoid": (0.25, True),
    "softplus": (1.0, True),
    "softsign": (1.0, True),
    "tanh": (1.0, True),
}


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
        largest_real_part_of_linear_matrix: over the eigenvalues of A.
        largest_real_part_of_recurrent_matrix: over the eigenvalues of W.
        lipschitz_constant: M.
        monotone: whether sigma is nondecreasing.
        rounding: the largest magnitude that counts as zero for an eigenvalue
            of A, W or their sums.
        step_size: of the explicit Euler method, or `None`.
        euler_factor: |I + step_size A| + step_size M |W| in the spectral
            norm, or `None`. Each step multiplies the distance between two
            trajectories of the discrete unit under the same inputs by at most
            this factor.
        gated: whether h' is multiplied by a gate. The theorem does not cover
            gates, so neither case holds then.
    """

    largest_symmetric_eigenvalue: float
    smallest_symmetric_singular_value: float
    largest_recurrent_singular_value: float
    smallest_recurrent_singular_value: float
    largest_recurrent_eigenvalue: float
    smallest_product_eigenvalue: float
    smallest_corrected_eigenvalue: float
    largest_real_part_of_linear_matrix: float
    largest_real_part_of_recurrent_matrix: float
    lipschitz_constant: float
    monotone: bool
    rounding: float
    step_size: float | None = None
    euler_factor: float | None = None
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
    def stable(self):
        """Whether every equilibrium is certified globally exponentially stable.

        The conditions are sufficient, not necessary.
        """
        return self.case_a or self.case_b

    @property
    def euler_stable(self):
        """Whether Euler's method contracts; `None` for other methods."""
        if self.euler_factor is None:
            return None
        return self.euler_factor < 1 - _ROUNDING

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
            f"  smallest singular value of W: "
            f"{self.smallest_recurrent_singular_value:.4g}",
        ]
        if self.euler_factor is not None:
            lines.append(
                f"  an Euler step of {self.step_size:.4g} multiplies the "
                "distance between two trajectories by at most "
                f"{self.euler_factor:.6g}, which should be below 1"
            )
        return "\n".join(lines)

    def _verdict(self):
        if self.stable:
            cases = [("a", self.case_a), ("b", self.case_b)]
            held = " and ".join(f"({name})" for name, holds in cases if holds)
            return f"Globally exponentially stable, by case {held}."
        if self.gated:
            return "No certificate: theorem 1 does not cover gated units."
        return "No certificate: neither case holds, which proves nothing."


def stability_certificate(
    layer_or_matrices, lipschitz_constant=None, monotone=None
):
    """The stability certificate of a unit h' = A h + sigma(W h + U x + b).

    Theorem 1 of the paper: an equilibrium is globally exponentially stable if
    A_sym = (A + A^T) / 2 is negative definite and either

        (a) sigma_min(A_sym) > M sigma_max(W), or
        (b) sigma is nondecreasing, W + W^T is negative definite and
            A^T W + W^T A is positive definite,

    where sigma is M-Lipschitz. As printed, (b) holds for symmetric W only.
    The certificate's `case_b` is a corrected condition for any W;
    `case_b_as_printed` is the paper's.

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
        A `StabilityCertificate`. For a layer with `solver="euler"`, it also
        tells whether the discrete unit contracts, for `time_deltas` of 1.

    Raises:
        ValueError: if matrices differ in shape, the layer is not built or has
            no such matrices, or its activation is unknown and one of the
            other arguments is `None`.

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
    Globally exponentially stable, by case (a).
    """
    linear, recurrent = unit_matrices(layer_or_matrices)
    lipschitz_constant, monotone = _activation_facts(
        layer_or_matrices, lipschitz_constant, monotone
    )
    symmetric = (linear + linear.T) / 2
    singular_values = np.linalg.svd(recurrent, compute_uv=False)
    size = max(np.linalg.norm(linear, 2), singular_values[0])
    product = linear.T @ recurrent
    step_size = _euler_step_size(layer_or_matrices)
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
        largest_real_part_of_linear_matrix=float(real_parts(linear)[-1]),
        largest_real_part_of_recurrent_matrix=float(real_parts(recurrent)[-1]),
        lipschitz_constant=lipschitz_constant,
        monotone=monotone,
        rounding=_ROUNDING * float(size),
        step_size=step_size,
        euler_factor=_euler_factor(
            linear, singular_values[0] * lipschitz_constant, step_size
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


def _euler_factor(linear, growth, step_size):
    if step_size is None:
        return None
    decay = np.linalg.norm(np.eye(len(linear)) + step_size * linear, 2)
    return float(decay + step_size * growth)


def _activation_facts(layer_or_matrices, lipschitz_constant, monotone):
    known = 1.0, True
    if hasattr(layer_or_matrices, "activation"):
        name = getattr(layer_or_matrices.activation, "__name__", None)
        known = _ACTIVATIONS.get(name)
    if known is None and None in (lipschitz_constant, monotone):
        raise ValueError(
            "The Lipschitz constant of the layer's activation is unknown: give "
            "`lipschitz_constant` and `monotone`. Received: "
            f"layer.activation={layer_or_matrices.activation}"
        )
    if lipschitz_constant is None:
        lipschitz_constant = known[0]
    if not 0 < lipschitz_constant < math.inf:
        raise ValueError(
            "`lipschitz_constant` should be a positive number. Received: "
            f"lipschitz_constant={lipschitz_constant}"
        )
    monotone = known[1] if monotone is None else monotone
    return float(lipschitz_constant), bool(monotone)


def _euler_step_size(layer):
    if getattr(layer, "solver", None) != "euler" or _is_gated(layer):
        return None
    if getattr(layer, "log_step_size", None) is None:
        return float(layer.step_size)
    return float(np.exp(keras.ops.convert_to_numpy(layer.log_step_size)))


def _is_gated(layer):
    return bool(getattr(layer, "gated", False))


def _word(holds):
    return "holds" if holds else "does not hold"
