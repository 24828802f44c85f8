"""Forced oscillators whose steps differ in length."""

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import reset_flag
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.resets import or_none


def oscillate(timescale, stiffness, factor, forces, positions, speeds):
    """One step, z = s (z + dt (b - A x)) and x = x + dt z.

    Args:
        timescale, stiffness, factor: tensors (..., oscillators), dt, A and s.
        forces, positions, speeds: pairs (batch, oscillators), b, x and z.

    Returns:
        The new `(positions, speeds)`.
    """
    speeds = tuple(
        factor * (speed + timescale * (force - stiffness * position))
        for force, position, speed in zip(forces, positions, speeds)
    )
    positions = tuple(
        position + timescale * speed
        for position, speed in zip(positions, speeds)
    )
    return positions, speeds


def oscillator_scan_irregular(
    timescale, stiffness, factor, forces, resets, positions, speeds
):
    """All steps, one by one.

    Args:
        timescale, stiffness, factor: tensors (batch, time, oscillators).
        forces: pair (batch, time, oscillators).
        resets: see `resets.py`, or `None`.
        positions, speeds: pairs (batch, oscillators), before the first step.

    Returns:
        `(positions, speeds)`, pairs (batch, time, oscillators).
    """
    count = timescale.shape[-1]
    sequences = [timescale, stiffness, factor, *forces]
    if resets is not None:
        sequences.append(ops.expand_dims(resets, -1))

    def parts(state):
        return [
            state[..., index * count : (index + 1) * count]
            for index in range(4)
        ]

    def step(state, items, constants):
        if resets is not None:
            state = ops.where(items[-1] != 0, 0.0, state)
        state = parts(state)
        moved = oscillate(*items[:3], items[3:5], state[:2], state[2:])
        return ops.concatenate([*moved[0], *moved[1]], axis=-1)

    states = backends.current().loop(
        step, sequences, ops.concatenate([*positions, *speeds], axis=-1), ()
    )
    states = parts(states)
    return tuple(states[:2]), tuple(states[2:])


# How it runs.


def _form_of(case, kernel):
    return fused(case, kernel.oscillator_scan_irregular, "steps")


def _plain(kernel):
    return oscillator_scan_irregular


def _call_native(
    run, timescale, stiffness, factor, forces, resets, positions, speeds
):
    flags = COMPLEX + reset_flag(resets)
    return run(
        Call("oscillator_scan_irregular", flags),
        timescale,
        stiffness,
        factor,
        forces,
        resets,
        positions,
        speeds,
    )


def _call_plain(kernel, call, *quantities):
    *system, resets, positions, speeds = quantities
    return oscillator_scan_irregular(
        *system, or_none(resets), positions, speeds
    )


def _case(kernel):
    """Two rows of five steps, with a reset in the second."""
    batch, time, size = 2, 5, 3
    steps, row = (batch, time, size), (batch, size)
    arrays = numbers(*(steps,) * 5, *(row,) * 4)
    for array in arrays[:3]:
        array += 1.0
    cotangents = numbers(*(steps,) * 4)
    resets = np.zeros((batch, time), "float32")
    resets[1, 2] = 1.0

    def function(tensors):
        *system, b, b_imag, x, x_imag, z, z_imag = tensors
        positions, speeds = kernel.oscillator_scan_irregular(
            *system,
            (b, b_imag),
            keras.ops.convert_to_tensor(resets),
            (x, x_imag),
            (z, z_imag),
        )
        return [*positions, *speeds]

    def define(dt, stiffness, factor, *parts):
        found = [
            _define(dt, stiffness, factor, *parts[part::2], resets)
            for part in range(2)
        ]
        return [np.stack(part, axis=1) for pair in zip(*found) for part in pair]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _define(dt, stiffness, factor, force, x, z, resets):
    """x and z after each step, two lists."""
    positions, speeds = [], []
    for t in range(force.shape[1]):
        x, z = (np.where(resets[:, t, None] > 0, 0.0, part) for part in (x, z))
        z = z + dt[:, t] * (force[:, t] - stiffness[:, t] * x)
        z = factor[:, t] * z
        x = x + dt[:, t] * z
        positions.append(x)
        speeds.append(z)
    return positions, speeds


OPERATION = Operation(
    function="oscillator_scan_irregular",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.oscillator_scan_irregular,
        "steps": _plain,
    },
    plain=_plain,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_case,),
    reference=oscillator_scan_irregular,
    along_time=False,
)
