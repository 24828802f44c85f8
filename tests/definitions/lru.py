"""LRU as its paper writes it: Orvieto et al. 2023, in float64.

x_t = Lambda x_{t-1} + gamma * (B u_t), y_t = Re(C x_t) + D u_t, with Lambda =
diag(exp(-exp(nu_log) + i exp(theta_log))) and gamma = exp(gamma_log).
"""

import numpy as np


def lru(weights, inputs, real=None, imag=None, activation=lambda y: y):
    """y_t of all steps, and the real and imaginary part of the last x_t."""
    eigenvalues = np.exp(
        -np.exp(weights["nu_log"]) + 1j * np.exp(weights["theta_log"])
    )
    gamma = np.exp(weights["gamma_log"])
    b = (weights["input_real"] + 1j * weights["input_imag"]).T
    c = (weights["output_real"] + 1j * weights["output_imag"]).T
    d = weights["feedthrough"]
    d = np.diag(d) if d.ndim == 1 else d.T
    batch, time, _ = inputs.shape
    if real is None:
        real = imag = np.zeros((batch, len(eigenvalues)))

    outputs = np.zeros((batch, time, len(c)))
    states = real + 1j * imag
    for row in range(batch):
        x = states[row]
        for step in range(time):
            u = inputs[row, step]
            x = eigenvalues * x + gamma * (b @ u)
            outputs[row, step] = (c @ x).real + d @ u
        states[row] = x
    return activation(outputs), states.real, states.imag
