"""LSSL as the paper writes it, in float64 (equations 1 to 5, section E.2)."""

import numpy as np
from scipy.special import erf


def transition(weights):
    """A = P (D + T^-1) Q."""
    superdiagonal, diagonal, subdiagonal = weights["transition_t"]
    tridiagonal = (
        np.diag(diagonal)
        + np.diag(superdiagonal[:-1], 1)
        + np.diag(subdiagonal[:-1], -1)
    )
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
):
    """The layer's outputs and the final state.

    `time_deltas` (batch, time) are the lengths of the steps in multiples of
    dt.
    """
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
