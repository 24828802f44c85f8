"""A and B of an `LSSL`: their weights, spectrum and stability."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_linrec.constraints import AccretiveBands
from keras_linrec.constraints import Between
from keras_linrec.constraints import ContractiveBands
from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.ops.structured.hippo import StructuredTransition

# The weights of A and B.
TRANSITION = (
    "transition_p",
    "transition_d",
    "transition_q",
    "transition_t",
    "input_vector",
)

# The smallest |p| and |q| that keep A invertible and stable.
_LEAST_SCALE = 1e-3


class Spectrum(NamedTuple):
    """The eigenvalues of an LSSL, see `LSSL.spectrum`."""

    continuous: np.ndarray
    discrete: np.ndarray
    dissipative: bool


class SpectrumOfTransition:
    """A and B of an `LSSL`, and the method that shows whether A is stable."""

    def _transition(self):
        """A and B that the layer computes with, a `StructuredTransition`.

        They are the weights, within the bounds of `stable_transition`.
        """
        return StructuredTransition(
            *(
                bound.within(getattr(self, name))
                if (bound := self._bounds.get(name))
                else ops.convert_to_tensor(getattr(self, name))
                for name in TRANSITION
            )
        )

    def spectrum(self):
        """The eigenvalues of A and of Abar, computed in float64.

        Returns:
            A named tuple of `continuous`, complex (N,), those of A, which are
            stable if no real part is positive; `discrete`, complex (features,
            N), those of each feature's Abar, stable if no modulus is above 1;
            and `dissipative`, whether A is stable by the criterion of
            `keras_linrec.constraints`, up to the rounding of float32 weights.
            The eigenvalues of matrices that are far from normal, such as
            LegS, change much with the last digits of their entries: small
            positive real parts mean little where `dissipative` is true.

        Raises:
            ValueError: if the layer is not built, or T is singular, so that
                there is no A.

        Example:

        >>> import keras_linrec
        >>> layer = keras_linrec.layers.LSSL(state_size=4)
        >>> layer.build((None, None, 1))
        >>> sorted(layer.spectrum().continuous.real.round(3).tolist())
        [-4.0, -3.0, -2.0, -1.0]
        """
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has a spectrum once it is built. "
                "Received: built=False"
            )
        weights = map(ops.convert_to_numpy, self._transition())
        p, d, q, t, _ = (np.asarray(weight, "float64") for weight in weights)
        matrix = _balanced(p, d, q, t)
        continuous = np.linalg.eigvals(matrix).astype("complex128")
        log_timescale = ops.convert_to_numpy(self.log_timescale)
        timescale = np.exp(np.asarray(log_timescale, "float64"))
        timescale = timescale[:, None] * self.step_rescale
        discrete = (1 + (1 - self.alpha) * timescale * continuous) / (
            1 - self.alpha * timescale * continuous
        )
        return Spectrum(continuous, discrete, _is_dissipative(p, d, q, t))


def add_transition(layer, bounds):
    """Create the weights of A and B of an `LSSL`.

    Their values come from `layer.measure`. `bounds` are their constraints, by
    name.
    """
    start = layer.measure.structured(layer.state_size)
    for name, value in zip(TRANSITION, start):
        weight = layer.add_parameter(
            name,
            value.shape,
            given_values(value),
            trainable=layer.trainable_transition,
            constraint=bounds.get(name),
        )
        setattr(layer, name, weight)


def _tridiagonal(t):
    return np.diag(t[1]) + np.diag(t[0, :-1], 1) + np.diag(t[2, :-1], -1)


def _balanced(p, d, q, t):
    """A after a similarity transform that gives P and Q equal moduli."""
    if (p * q < 0).all():
        q = np.sqrt(-p * q)
        p = -q
    try:
        inverse = np.linalg.inv(_tridiagonal(t))
    except np.linalg.LinAlgError:
        raise ValueError(
            "`transition_t` should be invertible: A = P (D + T^-1) Q. "
            f"Received: transition_t={t.tolist()}"
        ) from None
    return p[:, None] * (inverse + np.diag(d)) * q


def _is_dissipative(p, d, q, t):
    """Whether -R (D + T^-1) R has a negative semidefinite symmetric part."""
    if not (p * q < 0).all():
        return False
    tridiagonal = _tridiagonal(t)
    form = tridiagonal + tridiagonal.T + 2 * tridiagonal * d @ tridiagonal.T
    eigenvalues = np.linalg.eigvalsh(form)
    # The tolerance is that of weights in float32.
    return bool(eigenvalues[0] >= -1e-6 * max(1.0, eigenvalues[-1]))


def stable_constraints(start):
    """The constraints, by weight, that keep a transition dissipative."""
    contractive = start.d.min() < 0
    return {
        "transition_p": Between(maximum=-_LEAST_SCALE),
        "transition_q": Between(minimum=_LEAST_SCALE),
        "transition_d": Between(minimum=-0.5 if contractive else 0.0),
        "transition_t": (
            ContractiveBands() if contractive else AccretiveBands()
        ),
    }


def require_stable(start, alpha, measure):
    """Raise unless the constraints allow `start` and make `alpha` stable."""
    if alpha < 0.5:
        raise ValueError(
            "`stable_transition` needs an `alpha` of at least 0.5: with less, "
            "the discretised system may be unstable though A is stable. "
            f"Received: stable_transition=True, alpha={alpha}"
        )
    constraints = stable_constraints(start)
    for name, value in zip(TRANSITION, start):
        constraint = constraints.get(name)
        if constraint is None:
            continue
        kept = ops.convert_to_numpy(constraint(value.astype("float32")))
        if not np.allclose(kept, value, atol=1e-5):
            raise ValueError(
                "`stable_transition` should be False for this measure, whose "
                "initial A violates the constraints. Received: "
                f"stable_transition=True, measure={measure.get_config()}"
            )
