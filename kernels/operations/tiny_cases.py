"""Numbers for the self-tests of the operations, and slopes in NumPy."""

import numpy as np


def numbers(*shapes):
    generator = np.random.default_rng(0)
    return [
        generator.uniform(-0.7, 0.7, shape).astype("float32")
        for shape in shapes
    ]


def complex_of(real, imag):
    return real.astype("float64") + 1j * imag


def parts_of(number):
    return [number.real, number.imag]


def recurrence(decay, inputs, state, order):
    """Complex outputs of the recurrence, and the state before each step."""
    outputs, before = np.empty_like(inputs), np.empty_like(inputs)
    for step in order:
        before[:, step] = state
        state = decay[:, step] * state + inputs[:, step]
        outputs[:, step] = state
    return outputs, before


def slopes_of(function, arrays, cotangents):
    """Gradients of a NumPy function, one argument after another."""
    slopes = []
    for index, array in enumerate(arrays):
        # The complex-step derivative subtracts nothing, so it loses no digits.
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = array.astype("complex128")
            moved[place] += 1e-30j
            results = function(*arrays[:index], moved, *arrays[index + 1 :])
            slope[place] = sum(
                np.sum(cotangent * result.imag) / 1e-30
                for cotangent, result in zip(cotangents, results)
            )
        slopes.append(slope)
    return slopes


def stable_systems(features=2, channels=2, state=3):
    """Structured systems that are stable."""
    vector, bands = (state,), (3, state)
    shapes = vector, vector, vector, bands, vector, (features,)
    arrays = [1.0 + 0.3 * array for array in numbers(*shapes)]
    # Every other feature has small steps, the others large ones.
    arrays[5] *= np.resize([0.02, 0.5], features).astype("float32")
    arrays[0] = -arrays[0]
    # T is far from singular.
    arrays[3][1] += 2.0
    arrays[3][0, -1] = arrays[3][2, -1] = 0.0
    return arrays + numbers((features, channels, state))


def transition_of(p, d, q, t):
    """A = P (D + T^-1) Q."""
    bands = np.diag(t[0, :-1], 1) + np.diag(t[1]) + np.diag(t[2, :-1], -1)
    return p[:, None] * (np.diag(d) + np.linalg.inv(bands)) * q
