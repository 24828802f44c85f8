"""LipschitzRNN as its paper defines it: Erichson et al. 2021.

h' = A h + tanh(W h + U x + b) (equation 1), A and W by equation 6, alpha by
equation 12, steps by section 5, and the classical Runge-Kutta method.
"""

import numpy as np


def symmetric_skew(m, beta, gamma):
    symmetric, skew = m + m.T, m - m.T
    return (1 - beta) * symmetric + beta * skew - gamma * np.eye(len(m))


def contractive_pair(m_a, m_w, beta, gamma, dt, solver, alpha):
    """alpha A and W of `stable_transition`, by the equations of its docstring.

    Args:
        m_a, m_w: M_A and M_W.
        beta, gamma: pairs.
    """
    identity = np.eye(len(m_a))
    r = {"euler": 1, "rk2": 3}[solver]
    s_w = symmetric_skew(m_w, beta[1], gamma[1])
    nu = np.sqrt(np.diag(s_w @ s_w.T) + 1e-6)
    if solver == "rk2":
        nu = np.full_like(nu, np.sqrt(np.mean(nu**2)))
    symmetric, skew = m_a + m_a.T, m_a - m_a.T
    x = alpha * (beta[0] * skew - (1 - beta[0]) * symmetric @ symmetric)
    x = x - r / 4 * s_w.T @ np.diag(1 / nu + r * dt / 2) @ s_w
    singular_values = np.linalg.svd(dt * x, compute_uv=False)
    s = (1 + np.sum(singular_values**8)) ** (-1 / 8)
    z = s * dt * x
    k = identity + z / 2 + z @ z / 6
    g = identity + z @ k
    rho = 1 / (1 + alpha * gamma[0] * dt)
    w = rho * np.sqrt(s) * s_w @ k
    b = rho * np.diag((1 + r * dt * nu / 2) ** -0.5) @ g
    return (b - identity) / dt - w / 2, w


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
    stable_transition=False,
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
    if stable_transition:
        a, w = contractive_pair(
            weights["linear_kernel"],
            weights["recurrent_kernel"],
            (beta_a, beta_w),
            (gamma_a, gamma_w),
            step_size,
            solver,
            alpha,
        )
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
