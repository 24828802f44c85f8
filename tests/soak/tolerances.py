"""How far rounding may take a result from its float64 definition.

Rounding errors act as if every weight and every input were off by a few units
in the last place, at every step. So the bound is measured: the reference is
computed again with its weights and inputs moved at random by a share `MOVE` of
their size, and the largest change, divided by `MOVE`, is the result's condition
number. It grows with the length, with the magnitudes, and with a recurrence
that forgets slowly or not at all. The bound is

    eps * (ROUNDINGS * condition + OUTPUT_ROUNDINGS * scale)

with the machine epsilon `eps` of the recurrence, to which the rounding of
results to a narrower dtype is added. Computing in other coordinates may amplify
roundings further, by the condition number of the change of coordinates.
"""

from typing import NamedTuple

import numpy as np

MOVE = 1e-7
# Random moves find a share of the worst case only, and a step has more
# roundings than one. In 3,000 cases on three backends the largest error was
# 0.77 of its bound.
ROUNDINGS = 32
OUTPUT_ROUNDINGS = 8
DRAWS = 3
# Of the moves that find out more, where a result exceeds its bound. Activations
# that jump, as modReLU does, amplify few moves, and those by much.
MANY_DRAWS = 60
EPSILONS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
# The smallest numbers, to which those below are rounded.
LEAST = {
    "float64": 0.0,
    "float32": 2.0**-126,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
}


class Bounded(NamedTuple):
    """A result of the reference, and how far another may be from it."""

    value: np.ndarray
    bound: float


def bounded(
    reference,
    arguments,
    generator,
    recurrence,
    outputs=None,
    output_count=1,
    amplification=1.0,
    least_scale=0.0,
    output_roundings=OUTPUT_ROUNDINGS,
    draws=DRAWS,
):
    """The reference's results with their bounds.

    Args:
        reference: function of a list of float64 arrays that returns a list of
            float64 arrays.
        arguments: the arrays: weights, inputs and states.
        generator: `numpy.random.Generator`.
        recurrence: the dtype of the computation.
        outputs: the dtype of the first results. Defaults to that of the
            computation, as it is for the others.
        output_count: how many results have that dtype. Defaults to 1.
        amplification: the condition number of the coordinates that the
            computation takes place in. Defaults to 1.
        least_scale: the size of the numbers that are rounded on the way to
            smaller results. Defaults to 0.
        output_roundings: how many units in the last place of the largest
            number a result may be off whatever its condition. Defaults to 8.
        draws: the number of random moves. Defaults to 3.
    """
    expected = reference(arguments)
    conditions = np.zeros(len(expected))
    for _ in range(draws):
        moved = reference([moved_by(part, generator) for part in arguments])
        for index, (one, other) in enumerate(zip(moved, expected)):
            change = np.abs(one - other).max(initial=0.0)
            conditions[index] = max(conditions[index], change / MOVE)
    results = []
    for index, (value, condition) in enumerate(zip(expected, conditions)):
        scale = np.abs(value).max(initial=0.0)
        bound = (EPSILONS[recurrence] * amplification) * (
            ROUNDINGS * condition + output_roundings * max(scale, least_scale)
        )
        if index < output_count and outputs is not None:
            bound += EPSILONS[outputs] * scale + LEAST[outputs]
        results.append(Bounded(value, bound + np.finfo("float32").tiny))
    return results


def moved_by(values, generator):
    """Floats, each moved by about a share `MOVE` of its size."""
    if values.dtype.kind != "f":
        return values
    return values * (1 + MOVE * generator.standard_normal(values.shape))


def error_share(got, expected):
    """The largest error as a share of its bound; above 1 is wrong.

    Infinite if shapes differ, or where a number is not finite.
    """
    if got.shape != expected.value.shape:
        return np.inf
    error = np.abs(got.astype("float64") - expected.value).max(initial=0.0)
    return float(error / expected.bound) if np.isfinite(error) else np.inf


def fits(got, expected):
    """Whether a result is within its bound."""
    return error_share(got, expected) <= 1
