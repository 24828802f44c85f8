"""The conditions of a stable `LipschitzRNN`."""

import math
import warnings

import numpy as np

from keras_linrec.ops.algebra.contractive_pair import ROOM
from keras_linrec.ops.concrete_values import values_of

# Of a state over a sequence, by the linear part alone. With the defaults and 64
# units it is about 1.2 in 200 steps.
LARGEST_GROWTH = 1e3
# Assumed where a layer is built without a length.
USUAL_STEPS = 200
# Eigenvalues of larger matrices take seconds.
MOST_UNITS = 512
ORDERS = {"euler": 1, "rk2": 2, "rk4": 4}

# By the name of a Keras activation: its Lipschitz constant, and whether it is
# monotonically nondecreasing. Leaky ReLUs are assumed to have slopes between 0
# and 1.
LIPSCHITZ_CONSTANTS = {
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


def require_stable(unit):
    """Raise unless `stable_transition` keeps a unit stable."""
    if unit.solver not in ROOM:
        raise ValueError(
            "`stable_transition` needs the solver 'euler' or 'rk2': for the "
            "others there is no proof that a step contracts. Received: "
            f"stable_transition=True, solver={unit.solver}"
        )
    if not unit.alpha > 0:
        raise ValueError(
            "`stable_transition` needs a positive `alpha`: without A no state "
            "is forgotten. Received: stable_transition=True, "
            f"alpha={unit.alpha}"
        )
    if not unit.gamma[0] > 0:
        raise ValueError(
            "`stable_transition` needs a positive `gamma` of A, the rate at "
            "which states are forgotten at least. Received: "
            f"stable_transition=True, gamma={unit.gamma}"
        )
    if unit.gated:
        raise ValueError(
            "`stable_transition` does not cover gates, which change the "
            "direction of h'. Received: stable_transition=True, gated=True"
        )
    require_slopes(unit.activation)


def require_slopes(activation):
    """Raise unless `stable_transition` holds with an activation."""
    name = getattr(activation, "__name__", None)
    _, monotone = LIPSCHITZ_CONSTANTS.get(name, (None, False))
    if not monotone:
        known = [key for key, (_, yes) in LIPSCHITZ_CONSTANTS.items() if yes]
        raise ValueError(
            "`stable_transition` needs an activation whose slopes are known "
            f"to lie between 0 and 1, one of {known}. Received: "
            f"stable_transition=True, activation={name}"
        )


def warn_if_diverging(unit, linear, steps):
    """Warn if the solver multiplies states by a large factor from the start.

    Large states follow the linear part where the activation is bounded, as tanh
    is.

    Args:
        unit: the layer.
        linear: alpha A, a tensor.
        steps: of a sequence, or `None`.
    """
    if unit.units > MOST_UNITS:
        return
    linear = values_of(linear)
    if linear is None:
        return
    steps = steps or USUAL_STEPS
    z = unit.step_size * np.linalg.eigvals(linear)
    order = ORDERS[unit.solver]
    per_step = abs(sum(z**k / math.factorial(k) for k in range(order + 1)))
    largest = per_step.max()
    growth = steps * math.log10(max(largest, 1.0))
    if growth > math.log10(LARGEST_GROWTH):
        warnings.warn(
            f"Layer '{unit.name}' diverges: with the weights that it starts "
            f"with, a step multiplies states by up to 1 + {largest - 1:.2g}, "
            f"{steps} steps by up to 10^{growth:.0f}. Choose a smaller "
            "`step_size`, or `stable_transition=True`. Received: "
            f"step_size={unit.step_size}",
            RuntimeWarning,
            stacklevel=2,
        )
