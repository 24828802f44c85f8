"""RotRNN as the paper writes it, in float64 (sections 3.1 to 3.4)."""

import numpy as np


def rotation(skew):
    """expm(skew), through the eigenvalues of the Hermitian matrix i skew.

    `scipy.linalg.expm` is off by 2e-14 where the norm is 6.
    """
    values, vectors = np.linalg.eigh(1j * skew)
    return ((vectors * np.exp(-1j * values)) @ vectors.conj().T).real


def transition(theta, gamma_log, rotation_kernel):
    """gamma P Theta P^T of one head."""
    size = rotation_kernel.shape[0]
    blocks = np.eye(size)
    for i, angle in enumerate(theta):
        blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ]
    orthogonal = rotation(rotation_kernel - rotation_kernel.T)
    gamma = np.exp(-np.exp(gamma_log))
    return gamma * orthogonal @ blocks @ orthogonal.T


def states(weights, inputs, initial_state, reverse=False):
    """x_t of all steps, (batch, time, heads * K), and the last one."""
    heads, size, _ = weights["rotation_kernel"].shape
    batch, time, _ = inputs.shape
    outputs = np.zeros((batch, time, heads * size))
    final = np.zeros((batch, heads * size))
    for head in range(heads):
        here = slice(head * size, (head + 1) * size)
        matrix = transition(
            weights["theta"][head],
            weights["gamma_log"][head],
            weights["rotation_kernel"][head],
        )
        gamma = np.exp(-np.exp(weights["gamma_log"][head]))
        input_matrix = weights["input_kernel"][head].T
        xi = np.sqrt((1 - gamma**2) / np.trace(input_matrix.T @ input_matrix))
        state = initial_state[:, here]
        for step in range(time)[:: -1 if reverse else 1]:
            state = state @ matrix.T + xi * inputs[:, step] @ input_matrix.T
            outputs[:, step, here] = state
        final[:, here] = state
    return outputs, final


def rotrnn(weights, inputs, *initial_states, activation=lambda y: y):
    """y_t, and the final state of each direction."""
    size = weights["output_kernel"].shape[0]
    if not initial_states:
        both = "backward_output_kernel" in weights
        initial_states = [np.zeros((len(inputs), size))] * (1 + both)
    feedthrough = weights["feedthrough"]
    if feedthrough.ndim == 1:
        feedthrough = np.diag(feedthrough)
    outputs = inputs @ feedthrough
    finals = []
    for direction, initial_state in enumerate(initial_states):
        hidden, final = states(weights, inputs, initial_state, direction == 1)
        kernel = ("output_kernel", "backward_output_kernel")[direction]
        outputs = outputs + hidden @ weights[kernel]
        finals.append(final)
    return activation(outputs), *finals
