"""The minimal units as their paper writes them: Feng et al. 2024, in float64.

Section 3.1 has minGRU, section 3.2 minLSTM, and the appendix on log-space the
function g.
"""

import numpy as np


def sigmoid(x):
    return np.exp(log_sigmoid(x))


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def candidates(x, candidate):
    if candidate == "linear":
        return x
    return np.where(x >= 0, x + 0.5, sigmoid(x))


def linear(weights, prefix, x):
    """Linear(x), with a bias if there is one."""
    return x @ weights[f"{prefix}kernel"] + weights.get(f"{prefix}bias", 0)


def min_gru(weights, inputs, state=None, candidate="linear"):
    """h_t of all steps, and the last one."""
    batch, time, _ = inputs.shape
    units = weights["kernel"].shape[1]
    outputs = np.zeros((batch, time, units))
    h = np.zeros((batch, units)) if state is None else state
    for step in range(time):
        x = inputs[:, step]
        z = sigmoid(linear(weights, "gate_", x))
        h_tilde = candidates(linear(weights, "", x), candidate)
        h = (1 - z) * h + z * h_tilde
        outputs[:, step] = h
    return outputs, h


def min_lstm(weights, inputs, state=None, candidate="linear"):
    """h_t of all steps, and the last one."""
    batch, time, _ = inputs.shape
    units = weights["kernel"].shape[1]
    outputs = np.zeros((batch, time, units))
    h = np.zeros((batch, units)) if state is None else state
    for step in range(time):
        x = inputs[:, step]
        log_f = log_sigmoid(linear(weights, "forget_", x))
        log_i = log_sigmoid(linear(weights, "input_", x))
        h_tilde = candidates(linear(weights, "", x), candidate)
        # f' = f / (f + i) = 1 / (1 + i / f). Both gates may be too small for
        # float64.
        f = sigmoid(log_f - log_i)
        i = sigmoid(log_i - log_f)
        h = f * h + i * h_tilde
        outputs[:, step] = h
    return outputs, h
