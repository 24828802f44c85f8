"""LDStack and its linear system as the paper has them (sections 2 and 3).

Real matrices, one step after another, in float64. The slope and the hinge of
logarithms are not the paper's: their docstrings define them.
"""

import numpy as np


def elu(a):
    return np.where(a > 0, a, np.expm1(np.minimum(a, 0)))


def block(one, other):
    """The step of a pair of eigenvalues in two real coordinates."""
    mean = (one + other).real / 2
    if one.imag == 0 and other.imag == 0:
        half = (one - other).real / 2
        return np.array([[mean, half], [half, mean]])
    return np.array([[mean, -one.imag], [one.imag, mean]])


def pairs(weights):
    """`(pairs, leftover)` of each system, from whichever weights there are."""
    if "eigenvalue_real" in weights:
        real, imag = weights["eigenvalue_real"], weights["eigenvalue_imag"]
        return real + 0j, lambda i, j: (
            real[i, j] + 1j * imag[i, j],
            real[i, j] - 1j * imag[i, j],
        )
    if "eigenvalue_mean" in weights:
        mean, split = weights["eigenvalue_mean"], weights["eigenvalue_split"]
        return mean + 0j, lambda i, j: hinge(mean[i, j], split[i, j])
    if "log_split" in weights:
        log, split = weights["log_magnitude"], weights["log_split"]
        return np.exp(log) + 0j, lambda i, j: log_hinge(log[i, j], split[i, j])
    angle = weights["angle"]
    log = weights.get("log_magnitude")
    if log is None:
        # On the unit circle, and room for one that is left over.
        log = np.zeros((len(angle), angle.shape[1] + 1))
    return np.exp(log) + 0j, lambda i, j: (
        np.exp(log[i, j] + 1j * angle[i, j]),
        np.exp(log[i, j] - 1j * angle[i, j]),
    )


def hinge(mean, split):
    if split >= 0:
        return mean + split + 0j, mean - split + 0j
    return mean - 1j * split, mean + 1j * split


def log_hinge(log, split):
    if split <= -np.pi:
        one, other = np.exp(log - split - np.pi), np.exp(log + split + np.pi)
        return -one + 0j, -other + 0j
    return tuple(np.exp(number) for number in hinge(log, split))


def systems(weights, size, count):
    """Each system's eigenvalues (size,) and step of modal coordinates."""
    leftover, pair = pairs(weights)
    for i in range(count):
        eigenvalues, step = [], np.zeros((size, size))
        for j in range(size // 2):
            one, other = pair(i, j)
            eigenvalues += [one, other]
            step[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = block(one, other)
        if size % 2:
            eigenvalues.append(leftover[i, -1])
            step[-1, -1] = leftover[i, -1].real
        yield np.array(eigenvalues), step


def reached(transition, vector):
    """The controllability matrix [b, A b, A^2 b, ...]."""
    columns = [vector]
    for _ in range(len(vector) - 1):
        columns.append(transition @ columns[-1])
    return np.stack(columns, axis=1)


def block_diagonal(blocks):
    count, size = len(blocks), len(blocks[0])
    matrix = np.zeros((count * size, count * size))
    for i, part in enumerate(blocks):
        here = slice(i * size, (i + 1) * size)
        matrix[here, here] = part
    return matrix


def network(weights, basis="learned"):
    """A, B and C of real coordinates, B without projections."""
    kernel = weights["input_kernel"]
    states = len(weights["output_kernel"])
    count = len(pairs(weights)[0])
    size = states // count
    found = list(systems(weights, size, count))
    transition = block_diagonal([step for _, step in found])
    entering = np.arange(size) % 2 == 0
    inputs = kernel.T
    if kernel.shape[1] != states:
        inputs = np.concatenate(
            [np.outer(entering, kernel[:, system]) for system in range(count)]
        )
    coordinates = np.eye(states)
    if basis == "companion":
        coordinates = block_diagonal(
            [
                companion(eigenvalues)[1]
                @ np.linalg.inv(reached(step, entering))
                for eigenvalues, step in found
            ]
        )
    elif "state_basis" in weights:
        coordinates = weights["state_basis"]
    inverse = np.linalg.inv(coordinates)
    return (
        coordinates @ transition @ inverse,
        coordinates @ inputs,
        weights["output_kernel"].T @ inverse,
    )


def companion(eigenvalues):
    """The transpose form of equation (2), and what its input reaches."""
    size = len(eigenvalues)
    matrix = np.eye(size, k=1)
    matrix[-1] -= np.poly(far_apart(eigenvalues)).real[:0:-1]
    return matrix, reached(matrix, np.eye(size)[-1])


def far_apart(roots):
    """Each root far from those before, or their polynomial is lost."""
    ordered, left = [], list(roots)
    while left:
        ordered.append(
            max(
                left,
                key=lambda z: np.log(
                    np.abs(z - np.array(ordered)) + 1e-300
                ).sum(),
            )
        )
        left.remove(ordered[-1])
    return np.array(ordered)


def ldstack(
    weights,
    inputs,
    *states,
    activation=elu,
    depth=2,
    slope=1.0,
    basis="learned",
):
    """Outputs, and the state of every recurrence after the last step."""
    transition, entering, leaving = network(weights, basis)
    if activation is None:
        depth = 1
    projections = weights.get("projection")
    has_parts = projections is not None and depth > 1
    if projections is None:
        sequences = [inputs]
    elif not has_parts:
        mean = projections.T @ projections / len(projections)
        sequences = [inputs @ mean]
    else:
        sequences = [inputs @ np.outer(row, row) for row in projections]
    outputs, finals = [], []
    for index, sequence in enumerate(sequences):
        start = [state[:, index] if has_parts else state for state in states]
        hidden, final = stack(
            transition,
            sequence @ entering.T + weights.get("state_bias", 0),
            start,
            activation,
            depth,
            slope,
        )
        outputs.append(hidden @ leaving.T)
        finals.append(final)
    output = np.mean(outputs, axis=0) + inputs @ weights["feedthrough"]
    output = output + weights.get("bias", 0)
    if not has_parts:
        return output, *finals[0]
    return output, *(np.stack(parts, axis=1) for parts in zip(*finals))


def stack(transition, driven, states, activation, depth, slope):
    """h^depth of all steps, and the last of every h^i."""
    batch, time, size = driven.shape
    if not states:
        states = [np.zeros((batch, size))] * depth
    correction = np.zeros(driven.shape)
    share = 1.0 if activation is None or depth == 1 else slope
    finals = []
    for i in range(depth):
        state = states[i]
        hidden, after = np.zeros(driven.shape), np.zeros(driven.shape)
        for t in range(time):
            step = state @ transition.T + driven[:, t]
            state = share * step + correction[:, t]
            hidden[:, t] = state
            if i < depth - 1:
                after[:, t] = activation(step) - share * step
        correction = after
        finals.append(state)
    return hidden, finals


def linear_dynamical_system(weights, inputs, *states, activation=lambda y: y):
    """As `ldstack` of one linear recurrence; `activation` is the outputs'."""
    outputs, *finals = ldstack(weights, inputs, *states, activation=None)
    return activation(outputs), *finals
