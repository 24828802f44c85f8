"""LSSL as the paper writes it, in float64 (equations 1 to 5, section E.2)."""

import numpy as np
from scipy.special import erf


def mirrored(x, least):
    """x where it is at least `least`, and its mirror image elsewhere."""
    return least + np.abs(x - least)


def contractive_bands(bands):
    """The bands of a T with |I - T| <= 1: no row or column sums above 1.

    With its absolute entries, a sum r above 1 becomes 1 / r, first of rows,
    then of columns.
    """
    rest = np.eye(bands.shape[1]) - _matrix(bands)
    for _ in range(2):
        sums = np.maximum(np.abs(rest).sum(axis=1, keepdims=True), 1)
        rest = (rest / sums**2).T
    return _bands(np.eye(bands.shape[1]) - rest)


def accretive_bands(bands):
    """The bands of a T with a positive semidefinite T + T^T.

    Its diagonal entries are mirrored at the sum of those beside them, by
    Gershgorin's theorem.
    """
    matrix = _matrix(bands)
    both = np.abs(matrix + matrix.T)
    np.fill_diagonal(both, 0)
    result = bands.copy()
    result[1] = mirrored(bands[1], both.sum(axis=1) / 2)
    return result


def _matrix(bands):
    above, diagonal, below = bands
    return np.diag(diagonal) + np.diag(above[:-1], 1) + np.diag(below[:-1], -1)


def _bands(matrix):
    above, below = np.diag(matrix, 1), np.diag(matrix, -1)
    return np.array([[*above, 0], np.diag(matrix), [*below, 0]])


def dissipative(weights, measure):
    """The weights with which A is dissipative, by `keras_linrec.constraints`.

    Weights that fulfil the three conditions there are as they were.
    """
    is_window = measure == "legt"
    bounded = accretive_bands if is_window else contractive_bands
    return {
        **weights,
        "transition_p": -mirrored(-weights["transition_p"], 1e-3),
        "transition_q": mirrored(weights["transition_q"], 1e-3),
        "transition_d": mirrored(
            weights["transition_d"], 0.0 if is_window else -0.5
        ),
        "transition_t": bounded(weights["transition_t"]),
    }


def transition(weights):
    """A = P (D + T^-1) Q."""
    tridiagonal = _matrix(weights["transition_t"])
    return (
        np.diag(weights["transition_p"])
        @ (np.diag(weights["transition_d"]) + np.linalg.inv(tridiagonal))
        @ np.diag(weights["transition_q"])
    )


def discretise(matrix, vector, timescale, alpha):
    """The generalised bilinear transform, equation 3."""
    identity = np.eye(len(matrix))
    inverse = np.linalg.inv(identity - alpha * timescale * matrix)
    return (
        inverse @ (identity + (1 - alpha) * timescale * matrix),
        timescale * inverse @ vector,
    )


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def lssl(
    weights,
    inputs,
    initial_state=None,
    alpha=0.5,
    activation=gelu,
    time_deltas=None,
    step_rescale=1.0,
    stable_transition=False,
    measure="legs",
):
    """The layer's outputs and the final state.

    `time_deltas` (batch, time) are the lengths of the steps in multiples of
    dt.
    """
    if stable_transition:
        weights = dissipative(weights, measure)
    batch, time, features = inputs.shape
    _, channels, size = weights["output_matrix"].shape
    state = initial_state
    if state is None:
        state = np.zeros((batch, features, size))
    state = state.copy()
    matrix = transition(weights)
    timescale = step_rescale * np.exp(weights["log_timescale"])
    systems = [
        discretise(matrix, weights["input_vector"], dt, alpha)
        for dt in timescale
    ]
    outputs = np.zeros((batch, time, features, channels))
    for row, step, feature in np.ndindex(batch, time, features):
        a_bar, b_bar = systems[feature]
        if time_deltas is not None:
            dt = time_deltas[row, step] * timescale[feature]
            a_bar, b_bar = discretise(
                matrix, weights["input_vector"], dt, alpha
            )
        u = inputs[row, step, feature]
        state[row, feature] = a_bar @ state[row, feature] + b_bar * u
        outputs[row, step, feature] = (
            weights["output_matrix"][feature] @ state[row, feature]
            + weights["feedthrough"][feature] * u
        )
    outputs = activation(outputs).reshape(batch, time, features * channels)
    outputs = outputs @ weights["kernel"]
    return outputs + weights.get("bias", 0.0), state
