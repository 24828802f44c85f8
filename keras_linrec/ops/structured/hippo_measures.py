"""The measures of HiPPO by name, and the ranges of their parameters."""

import math

import numpy as np

from keras_linrec.validation import is_number
from keras_linrec.validation import require_choice

# Measures without parameters.
MEASURES = ("legs", "legt", "lagt")

_DEFAULTS = {
    "legs": {},
    "legt": {},
    "lagt": {},
    "generalized_laguerre": {"order": 0.0, "tilt": 1.0},
    "chebyshev": {"kind": 1},
    "gegenbauer": {"order": 1.0},
    "jacobi": {"alpha": 0.0, "beta": 0.0},
}


def require_measure(measure, parameters):
    """Return all parameters of a measure, defaults included.

    Raises:
        ValueError: if there is no such measure, or if a parameter is unknown
            or out of its range.
    """
    require_choice("measure", measure, _DEFAULTS)
    defaults = _DEFAULTS[measure]
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
        if not (is_number(value) and math.isfinite(value) and fits(value)):
            raise ValueError(
                f"`{name}` of the measure '{measure}' should be {expected}. "
                f"Received: {name}={value}"
            )
    return parameters


def _range(measure, name):
    if name == "kind":
        return "1 or 2", lambda value: value in (1, 2)
    if name == "tilt":
        return "a number of 0 or more", lambda value: value >= 0
    if measure == "gegenbauer":
        return "a number above -1/2", lambda value: value > -0.5
    return "a number above -1", lambda value: value > -1


def require_positions(measure, family, positions):
    """Positions as a float64 array; raise if outside the measure's support."""
    positions = np.asarray(positions, dtype="float64")
    longest = 1.0 if family == "window" else np.inf
    if not ((positions >= 0) & (positions <= longest)).all():
        support = "from 0 to 1" if family == "window" else "of 0 or more"
        raise ValueError(
            f"`positions` should be times {support}, how long ago, for the "
            f"measure '{measure}'. Received: positions={positions}"
        )
    return positions


def family_of(measure, parameters):
    """The family that a measure belongs to, and its exponents there.

    Returns:
        `("legs",)`, `("laguerre", order, tilt)` or `("window", alpha, beta)`.
    """
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
