"""The conditions of a stable `LipschitzRNN`."""

from keras_linrec.ops.contractive_pair import ROOM

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
    name = getattr(unit.activation, "__name__", None)
    _, monotone = LIPSCHITZ_CONSTANTS.get(name, (None, False))
    if not monotone:
        known = [key for key, (_, yes) in LIPSCHITZ_CONSTANTS.items() if yes]
        raise ValueError(
            "`stable_transition` needs an activation whose slopes are known "
            f"to lie between 0 and 1, one of {known}. Received: "
            f"stable_transition=True, activation={name}"
        )
