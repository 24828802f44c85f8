"""Structured state-space systems, for the tests of their native responses."""

import numpy as np
from definitions import lssl as definition

from keras_linrec.ops.structured.hippo import hippo

NAMES = ("p", "d", "q", "t", "b", "timescale", "output_matrix")
# The place of T.
BANDS = NAMES.index("t")


def rounded(array):
    """To float32 and back, so that only the computation differs."""
    return array.astype("float32").astype("float64")


def system(measure, features, channels, state, moved=0.0, seed=0):
    """Arguments in float64: those of a measure, randomly perturbed."""
    generator = np.random.default_rng(seed)
    weights = [np.array(part) for part in hippo(measure, state)]
    weights = [
        part * (1 + moved * generator.uniform(-1, 1, part.shape))
        for part in weights
    ]
    if moved:
        weights[3][0, :-1] += generator.uniform(-0.3, 0.3, state - 1)
    steps = np.exp(generator.uniform(np.log(1e-3), np.log(1e-1), features))
    read_out = generator.uniform(-1, 1, (features, channels, state))
    return [rounded(part) for part in (*weights, steps, read_out)]


def transition(p, d, q, t):
    parts = zip("pdqt", (p, d, q, t))
    return definition.transition({f"transition_{n}": w for n, w in parts})


def response_of(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """The impulse response, (features, channels, time), step by step."""
    matrix, response = transition(p, d, q, t), []
    for step, rows in zip(timescale, output_matrix):
        discrete, state = definition.discretise(matrix, b, step, alpha)
        states = [state]
        for _ in range(time - 1):
            states.append(discrete @ states[-1])
        response.append(rows @ np.stack(states, axis=-1))
    return np.stack(response)


def weights_of(results, seed=2):
    """Random cotangents."""
    generator = np.random.default_rng(seed)
    return [rounded(generator.uniform(-1, 1, one.shape)) for one in results]


def assert_slopes(
    gradients,
    arguments,
    define,
    weights,
    tolerance,
    directions=1,
    floor=1e-3,
    bands=BANDS,
):
    """Compare gradients of sum(weights * results) with derivatives.

    Args:
        gradients: those of the arguments.
        define: the results in float64, as a function of the arguments.
        directions: how many random directions to take in each argument.
        floor: added to what errors are relative to, since gradients of single
            numbers may be sums that vanish.
        bands: the place of a structured system's T, or `None`.
    """
    generator = np.random.default_rng(7)
    pairs = zip(arguments, gradients, strict=True)
    for index, (argument, slopes) in enumerate(pairs):
        assert slopes.shape == argument.shape
        for _ in range(directions):
            direction = generator.choice([-1.0, 1.0], slopes.shape)
            if index == bands:
                # The last entries of the outer bands are not part of T.
                direction[[0, 2], -1] = 0.0
                assert not slopes[[0, 2], -1].any()
            moved = list(arguments)
            # The complex-step derivative, which subtracts nothing.
            moved[index] = moved[index] + 1e-30j * direction
            expected = sum(
                np.sum(weight * result.imag) / 1e-30
                for weight, result in zip(weights, define(*moved), strict=True)
            )
            error = abs(np.sum(slopes * direction) - expected)
            scale = np.abs(slopes).sum() + floor
            assert error <= tolerance * scale, index
