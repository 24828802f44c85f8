"""Scans whose gates compute the decay of each step, in their plain form.

It computes the same as the fused kernels, in `keras.ops`: for second
derivatives, and where no fused kernel runs.
"""

from functools import partial
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_linrec.double_precision import activate
from keras_linrec.kernels.native.call_encoding import POSITIVE
from keras_linrec.kernels.native.call_encoding import RATES
from keras_linrec.kernels.native.call_encoding import TWO_GATES
from keras_linrec.kernels.native.call_encoding import reset_flag
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.resets import or_none

# Less than this is not told from 0 under the square root, whose slope is
# infinite there. That of the gate is finite and goes to 0: what it loses here
# is less than 1e-18.
_SMALLEST_SQUARE = 1e-36


class Gates(NamedTuple):
    """How a decay, and what enters, follow from the drive.

    The drive is two or three numbers for each channel:

    - k, v: share = sigmoid(k), decay = 1 - share, entering = share g(v);
    - f, k, v, with `two`: share = sigmoid(k) / (sigmoid(k) + sigmoid(f));
    - r, k, with `rates`: decay = exp(largest_rate sigmoid(r)), entering =
      sqrt(1 - decay^2) sigmoid(k) inputs.

    g is the identity or, if `positive`, v + 1/2 above 0 and sigmoid(v) below.
    """

    two: bool = False
    rates: bool = False
    positive: bool = False

    @property
    def drives(self):
        """How many numbers drive a channel."""
        return 3 if self.two else 2


class Driven(NamedTuple):
    """What gates read; all are differentiable."""

    drive: object  # (..., drives times channels), one number after another
    bias: object = None  # (drives times channels,), added to the drive
    inputs: object = None  # (..., channels), with rates
    largest_rate: object = None  # (channels,), with rates; not above 0


def opened(gates, driven):
    """The decays, and what enters, `(decay, entering)`."""
    drive = driven.drive
    if driven.bias is not None:
        drive = drive + driven.bias
    drives = ops.split(drive, gates.drives, axis=-1)
    if gates.rates:
        return _rated(*map(ops.sigmoid, drives), *driven[2:])
    *drives, candidate = drives
    # Small shares are exact; a decay near 1 has no more digits anyway.
    share = _share(*drives)
    if gates.positive:
        candidate = positive(candidate)
    return 1.0 - share, share * candidate


def _share(*drives):
    if len(drives) == 1:
        return ops.sigmoid(drives[0])
    forget, enter = map(_log_sigmoid, drives)
    return ops.sigmoid(enter - forget)


def _log_sigmoid(number):
    return -activate(keras.activations.softplus, -number)


def positive(number):
    """Continuous, increasing, above 0."""
    return ops.where(number >= 0, number + 0.5, ops.sigmoid(number))


def _rated(rate_gate, input_gate, inputs, largest_rate):
    rate = largest_rate * rate_gate
    lost = -ops.expm1(2.0 * rate)
    # NaN passes.
    scale = ops.sqrt(ops.where(lost < _SMALLEST_SQUARE, _SMALLEST_SQUARE, lost))
    return ops.exp(rate), scale * input_gate * inputs


def gated_scan(scan, gates, driven, initial_state, resets=None):
    """`(outputs, final_state)` of a scan with the decays of gates.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse, resets)` on tuples
            of tensors, which returns `(outputs, final_state)`.
        gates: `Gates`.
        driven: `Driven`, of sequences (batch, time, ...).
        initial_state: (batch, channels).
        resets: see `resets.py`. Defaults to `None`.
    """
    decay, entering = opened(gates, driven)
    (outputs,), (final_state,) = scan(
        (decay,), (entering,), (initial_state,), False, resets
    )
    return outputs, final_state


# How it runs.


def _form_of(case, kernel):
    return fused(case, kernel.gated_scan, "scan")


def _plain(kernel):
    return partial(gated_scan, kernel.scan)


def _gates_of(flags):
    return Gates(*(bool(flags & bit) for bit in (TWO_GATES, RATES, POSITIVE)))


def _call_native(run, gates, driven, initial_state, resets=None):
    flags = TWO_GATES * gates.two + RATES * gates.rates
    flags += POSITIVE * gates.positive + reset_flag(resets)
    drive, bias, inputs, largest_rate = driven
    if bias is None:
        bias = ops.zeros((drive.shape[-1],), drive.dtype)
    arguments = drive, bias, inputs, largest_rate, resets, initial_state
    return run(Call("gated_scan", flags), *arguments)


def _call_plain(kernel, call, *quantities):
    *driven, resets, initial_state = quantities
    return gated_scan(
        kernel.scan,
        _gates_of(call.flags),
        Driven(*driven),
        initial_state,
        or_none(resets),
    )


def _sigmoid(number):
    return 1.0 / (1.0 + np.exp(-number))


def _case(gates, define_gates, kernel):
    """Two rows of five steps, with a reset in the second."""
    batch, time, channels = 2, 5, 3
    width = gates.drives * channels
    steps = (batch, time, channels)
    arrays = numbers((batch, time, width), (width,), (batch, channels))
    if gates.rates:
        inputs, rates = numbers(steps, (channels,))
        arrays += inputs, rates - 1.0
    cotangents = numbers(steps, (batch, channels))
    resets = np.zeros((batch, time), "float32")
    resets[1, 2] = 1.0

    def function(tensors):
        drive, bias, state, *others = tensors
        given = keras.ops.convert_to_tensor(resets)
        driven = Driven(drive, bias, *others)
        return list(kernel.gated_scan(gates, driven, state, given))

    def define(drive, bias, state, *others):
        drives = np.split(drive + bias, gates.drives, axis=-1)
        decay, entering = define_gates(*drives, *others)
        outputs = []
        for step in range(time):
            state = np.where(resets[:, step, None] > 0, 0.0, state)
            state = decay[:, step] * state + entering[:, step]
            outputs.append(state)
        return np.stack(outputs, axis=1), state

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _one_gate(enter, candidate):
    share = _sigmoid(enter)
    value = np.where(candidate.real >= 0, candidate + 0.5, _sigmoid(candidate))
    return 1.0 - share, share * value


def _two_gates(forget, enter, candidate):
    forget, enter = _sigmoid(forget), _sigmoid(enter)
    share = enter / (forget + enter)
    return 1.0 - share, share * candidate


def _rates(rate, enter, inputs, largest_rate):
    decay = np.exp(largest_rate * _sigmoid(rate))
    return decay, np.sqrt(1.0 - decay**2) * _sigmoid(enter) * inputs


OPERATION = Operation(
    function="gated_scan",
    choose=_form_of,
    forms={"fused": lambda kernel: kernel.gated_scan, "scan": _plain},
    plain=_plain,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(
        partial(_case, Gates(positive=True), _one_gate),
        partial(_case, Gates(two=True), _two_gates),
        partial(_case, Gates(rates=True), _rates),
    ),
)
