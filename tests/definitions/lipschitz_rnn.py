"""LipschitzRNN as its paper defines it: Erichson et al. 2021.

h' = A h + tanh(W h + U x + b) (equation 1), A and W by equation 6, alpha by
equation 12, steps by section 5, and the classical Runge-Kutta method.
"""

import numpy as np


def symmetric_skew(m, beta, gamma):
    symmetric, skew = m + m.T, m - m.T
    return (1 - beta) * symmetric + beta * skew - gamma * np.eye(len(m))


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def step(f, h, dt, solver):
    if solver == "euler":
        return h + dt * f(h)
    if solver == "rk2":
        return h + dt * f(h + dt / 2 * f(h))
    k1 = f(h)
    k2 = f(h + dt / 2 * k1)
    k3 = f(h + dt / 2 * k2)
    k4 = f(h + dt * k3)
    return h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lipschitz_rnn(
    weights,
    inputs,
    state=None,
    time_deltas=None,
    beta=0.75,
    gamma=0.001,
    step_size=0.03,
    solver="euler",
    alpha=1.0,
    activation=np.tanh,
):
    """Outputs (batch, time, units) and the final state.

    Args:
        weights: the layer's weights by name, as float64 arrays.
        inputs: (batch, time, features).
        state: (batch, units). Defaults to zeros.
        time_deltas: (batch, time), multiples of the step. Defaults to ones.
        **others: the layer's arguments.
    """
    (beta_a, beta_w), (gamma_a, gamma_w) = (
        np.broadcast_to(number, 2) for number in (beta, gamma)
    )
    w = symmetric_skew(weights["recurrent_kernel"], beta_w, gamma_w)
    a = np.zeros_like(w)
    if alpha:
        a = alpha * symmetric_skew(weights["linear_kernel"], beta_a, gamma_a)
    if "log_step_size" in weights:
        step_size = np.exp(weights["log_step_size"])
    if state is None:
        state = np.zeros((inputs.shape[0], w.shape[0]))
    if time_deltas is None:
        time_deltas = np.ones(inputs.shape[:2])

    outputs = np.zeros((*inputs.shape[:2], w.shape[0]))
    for t in range(inputs.shape[1]):
        x = inputs[:, t]

        def f(h, x=x):
            wh = h @ w.T
            drive = x @ weights["kernel"] + weights.get("bias", 0)
            change = h @ a.T + activation(wh + drive)
            if "gate_kernel" not in weights:
                return change
            gate = x @ weights["gate_kernel"] + weights.get("gate_bias", 0)
            return change * sigmoid(wh + gate)

        dt = step_size * time_deltas[:, t, None]
        state = step(f, state, dt, solver)
        outputs[:, t] = state
    return outputs, state
