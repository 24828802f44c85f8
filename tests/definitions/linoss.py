"""LinOSS and D-LinOSS as their papers write them, in float64.

Rusch and Rus 2024: x'' = -A x + B u (equation 2), and with z = x' the schemes
IM and IMEX of section 2.2, as 2 x 2 blocks M of each oscillator and the force
F. Boyer, Rusch and Rus 2025: with -G x' beside it, S = 1 + dt G, and A between
the bounds within which M has complex eigenvalues.
"""

import numpy as np


def relu(a):
    return np.maximum(a, 0)


def blocks(a, g, dt, discretization):
    """M (oscillators, 2, 2) on (z, x), and the factors F of B u."""
    a = relu(a)
    if discretization == "im":
        s = 1 / (1 + dt**2 * a)
        m = [[1 - dt**2 * a * s, -dt * a * s], [dt * s, s]]
        f = [m[0][0] * dt, m[1][0] * dt]
    else:
        g = relu(g)
        low = (2 + dt * g - 2 * np.sqrt(1 + dt * g)) / dt**2
        high = (2 + dt * g + 2 * np.sqrt(1 + dt * g)) / dt**2
        a = low + relu(a - low) - relu(a - high)
        s = 1 + dt * g
        m = [[1 / s, -dt * a / s], [dt / s, 1 - dt**2 * a / s]]
        f = [dt / s, dt**2 / s]
    return np.moveaxis(np.array(m), 2, 0), np.array(f).T


def linoss(
    weights,
    inputs,
    *states,
    discretization="imex",
    activation=lambda y: y,
    time_deltas=None,
    step_rescale=1.0,
):
    """y_t of all steps, and the parts of x and z after the last.

    `time_deltas` (batch, time) are the lengths of the steps in multiples of
    dt.
    """
    timescale = step_rescale * np.exp(weights["log_timescale"])
    a = weights["stiffness"]
    g = weights.get("friction", np.zeros_like(a))
    b = (weights["input_real"] + 1j * weights["input_imag"]).T
    c = (weights["output_real"] + 1j * weights["output_imag"]).T
    d = weights["feedthrough"]
    d = np.diag(d) if d.ndim == 1 else d.T
    batch, time, _ = inputs.shape
    if time_deltas is None:
        time_deltas = np.ones((batch, time))
    if not states:
        states = np.zeros((4, batch, len(a)))
    x, z = states[0] + 1j * states[1], states[2] + 1j * states[3]
    outputs = np.zeros((batch, time, len(c)))
    for row in range(batch):
        state = np.stack([z[row], x[row]], axis=1)
        for step in range(time):
            dt = timescale * time_deltas[row, step]
            m, f = blocks(a, g, dt, discretization)
            force = f * (b @ inputs[row, step])[:, None]
            state = np.einsum("pij,pj->pi", m, state) + force
            outputs[row, step] = (c @ state[:, 1]).real + d @ inputs[row, step]
        z[row], x[row] = state.T
    return activation(outputs), x.real, x.imag, z.real, z.imag
