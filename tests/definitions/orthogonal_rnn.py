"""OrthogonalRNN as its paper defines it: Mhammedi et al. 2017.

h_t = phi(W h_{t-1} + V x_t + b), one reflection after another (equations 6 to
8, and section 4.3 with complex numbers), one step after another.
"""

import numpy as np


def leaky_relu(a):
    return np.maximum(a / 10, a)


def oplu(a):
    ordered = np.array(a)
    for row in ordered:
        for i in range(0, len(row), 2):
            row[i : i + 2] = max(row[i : i + 2]), min(row[i : i + 2])
    return ordered


def modrelu(a, bias):
    """Equation 4, where the real form's numbers are complex again."""
    count = a.shape[1] // 2
    z = a[:, :count] + 1j * a[:, count:]
    modulus = np.abs(z)
    # Zero has no direction, and stays zero.
    direction = z / np.where(modulus > 0, modulus, 1)
    z = np.where(modulus + bias > 0, (modulus + bias) * direction, 0)
    return np.concatenate([z.real, z.imag], axis=1)


def householder(u, size):
    """Equation 6: I - 2 u u* / |u|^2 on the last numbers of `size`."""
    matrix = np.eye(size, dtype=u.dtype)
    k = len(u)
    matrix[size - k :, size - k :] -= 2 * np.outer(u, u.conj()) / np.vdot(u, u)
    return matrix


def transition(weights):
    """W; for complex vectors as the real matrix [[A, -B], [B, A]].

    u_1 (section 5) is 1 or -1, the sign of the weight `sign`, unless it is
    given itself: a sign has no slope, and layers take that of u_1 for it.
    """
    units = weights["kernel"].shape[1]
    reflectors = weights.get("reflectors", np.zeros((units, 0)))
    size = units
    if "phases" in weights:
        size = units // 2
        reflectors = reflectors[:size] + 1j * reflectors[size:]
    w = np.eye(size)
    for j, column in enumerate(reflectors.T):
        w = w @ householder(column[j:], size)
    if "sign" in weights:
        w[:, -1] *= weights.get("u_1", 1 if weights["sign"] > 0 else -1)
    if "phases" not in weights:
        return w
    w = w @ np.diag(np.exp(1j * weights["phases"]))
    return np.block([[w.real, -w.imag], [w.imag, w.real]])


def orthogonal_rnn(weights, inputs, state=None, activation=leaky_relu):
    """Outputs (batch, time, units) and the final state.

    Args:
        weights: the layer's weights by name, as float64 arrays.
        inputs: (batch, time, features).
        state: (batch, units). Defaults to zeros.
        activation: of a, or of a and the moduli's bias where there is one.
    """
    w = transition(weights)
    if state is None:
        state = np.zeros((inputs.shape[0], w.shape[0]))
    outputs = np.zeros((*inputs.shape[:2], w.shape[0]))
    for t in range(inputs.shape[1]):
        a = state @ w.T + inputs[:, t] @ weights["kernel"]
        a = a + weights.get("bias", 0)
        if "modulus_bias" in weights:
            state = activation(a, weights["modulus_bias"])
        else:
            state = activation(a)
        outputs[:, t] = state
    return outputs, state
