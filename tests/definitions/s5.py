"""S5 as its paper writes it: Smith et al. 2022, in float64.

x'(t) = Lambda x(t) + B u(t), y(t) = C x(t) + D u(t) (equation 1, diagonal) with
conjugate pairs of states, of which one each is kept: y = 2 Re(C x) + D u.
Zero-order hold (section 3.2, equation 6): Lambda_bar = exp(Lambda Delta),
B_bar = Lambda^-1 (Lambda_bar - I) B. Bilinear: appendix A, as in S4.
"""

import numpy as np


def discretise(lam, delta, discretization):
    """Lambda_bar, and the factor of B in B_bar."""
    if discretization == "bilinear":
        inverse = 1 / (1 - delta / 2 * lam)
        return inverse * (1 + delta / 2 * lam), inverse * delta
    lambda_bar = np.exp(lam * delta)
    # np.expm1 of a complex number keeps its digits.
    return lambda_bar, np.expm1(lam * delta) / lam


def eigenvalues_of(weights, eigenvalues):
    if eigenvalues == "stable":
        real = -np.exp(weights["transition_log_real"])
    else:
        real = weights["transition_real"]
    if eigenvalues == "clipped":
        real = np.minimum(real, -1e-4)
    return real + 1j * weights["transition_imag"]


def s5(
    weights,
    inputs,
    *states,
    discretization="zoh",
    eigenvalues="stable",
    bidirectional=False,
    activation=lambda y: y,
    time_deltas=None,
    step_rescale=1.0,
):
    """y_t of all steps, and the real and imaginary parts of the last x_t.

    `time_deltas` (batch, time) are the lengths of the steps in multiples of
    Delta. The second direction starts after the last step.
    """
    lam = eigenvalues_of(weights, eigenvalues)
    timescale = step_rescale * np.exp(weights["log_timescale"])
    b = (weights["input_real"] + 1j * weights["input_imag"]).T
    d = weights["feedthrough"]
    d = np.diag(d) if d.ndim == 1 else d.T
    batch, time, _ = inputs.shape
    if time_deltas is None:
        time_deltas = np.ones((batch, time))
    if not states:
        states = np.zeros((4, batch, len(lam)))
    names = ["output", "backward_output"][: 1 + bidirectional]
    outputs = np.zeros((batch, time, len(d)))
    final_states = []
    for index, name in enumerate(names):
        c = (weights[f"{name}_real"] + 1j * weights[f"{name}_imag"]).T
        final = states[2 * index] + 1j * states[2 * index + 1]
        order = range(time)[:: -1 if index else 1]
        for row in range(batch):
            x = final[row]
            for step in order:
                delta = timescale * time_deltas[row, step]
                lambda_bar, scale = discretise(lam, delta, discretization)
                u = inputs[row, step]
                x = lambda_bar * x + scale * (b @ u)
                outputs[row, step] += 2 * (c @ x).real
            final[row] = x
        final_states += [final.real, final.imag]
    for row, step in np.ndindex(batch, time):
        outputs[row, step] += d @ inputs[row, step]
    return activation(outputs), *final_states
