"""Whether an LSSL is stable, and what keeps it so."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_linrec.constraints import AccretiveBands
from keras_linrec.constraints import Between
from keras_linrec.constraints import ContractiveBands

# The weights of A and B.
TRANSITION = (
    "transition_p",
    "transition_d",
    "transition_q",
    "transition_t",
    "input_vector",
)

# What keeps A in the class of matrices that can be inverted, and stable.
_LEAST_SCALE = 1e-3


class Spectrum(NamedTuple):
    """The eigenvalues of an LSSL, see `LSSL.spectrum`."""

    continuous: np.ndarray
    discrete: np.ndarray
    dissipative: bool


def spectrum_of(layer):
    """The `Spectrum` of a built `LSSL`, see there."""
    weights = (
        ops.convert_to_numpy(getattr(layer, name)) for name in TRANSITION
    )
    p, d, q, t, _ = (np.asarray(weight, "float64") for weight in weights)
    matrix = _balanced(p, d, q, t)
    continuous = np.linalg.eigvals(matrix).astype("complex128")
    timescale = np.exp(
        np.asarray(ops.convert_to_numpy(layer.log_timescale), "float64")
    )
    timescale = timescale[:, None] * layer.step_rescale
    discrete = (1 + (1 - layer.alpha) * timescale * continuous) / (
        1 - layer.alpha * timescale * continuous
    )
    return Spectrum(continuous, discrete, _is_dissipative(p, d, q, t))


def _tridiagonal(t):
    return np.diag(t[1]) + np.diag(t[0, :-1], 1) + np.diag(t[2, :-1], -1)


def _balanced(p, d, q, t):
    """A with P and Q made alike, which does not change its eigenvalues."""
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
    # Of weights in float32.
    return bool(eigenvalues[0] >= -1e-6 * max(1.0, eigenvalues[-1]))


def stable_constraints(start):
    """What keeps the weights of a transition where it is dissipative."""
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
                "`stable_transition` should be False for this measure, which "
                "does not start from where the constraints keep A. Received: "
                f"stable_transition=True, measure={measure.get_config()}"
            )
