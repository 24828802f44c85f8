"""Unmasked steps moved to the front of each row, and back, by gathers.

It runs where no native kernel does.
"""

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels.native.call_encoding import TO_PLACES
from keras_linrec.kernels.native.call_encoding import WITH_MASKED
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.gathers import order
from keras_linrec.kernels.operations.gathers import take
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers


def move_steps(sequences, mask, to_places, with_masked):
    """Move the unmasked steps of each row to its front, or back.

    Each of the two moves is the transpose of the other, with and without
    `with_masked`.

    Args:
        sequences: (batch, time, features).
        mask: (batch, time), zero at masked steps.
        to_places: whether the steps are moved from the front of a row to the
            unmasked places, instead of to the front.
        with_masked: whether masked steps repeat the unmasked step before them,
            instead of being zero. Towards the front: whether they are added to
            that step, instead of being left out.

    Returns:
        A tensor (batch, time, features).
    """
    mask = ops.cast(mask, "bool")
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    if to_places:
        moved = take(sequences, ops.maximum(counts - 1, 0))
        happened = counts > 0 if with_masked else mask
        return ops.where(ops.expand_dims(happened, -1), moved, 0.0)
    step = ops.arange(0, ops.shape(mask)[1], dtype="int32")[None]
    if with_masked:
        return _sums(sequences, counts)
    moved = take(sequences, order(mask))
    runs = ops.expand_dims(step < counts[:, -1:], -1)
    return ops.where(runs, moved, 0.0)


def _sums(sequences, counts):
    batch, time, features = ops.shape(sequences)
    # Segment 0 of each row has the steps before the first unmasked one.
    rows = ops.arange(0, batch, dtype="int32")[:, None] * (time + 1)
    sums = ops.segment_sum(
        ops.reshape(sequences, (batch * time, features)),
        ops.reshape(rows + counts, (-1,)),
        num_segments=batch * (time + 1),
    )
    return ops.reshape(sums, (batch, time + 1, features))[:, 1:]


# How it runs.


def _form_of(case, kernel):
    reason = "gathers are fast on this device"
    return fused(case, kernel.move_steps, "gathers", reason)


def _move_steps_case(kernel):
    """To the front, and to the places with repeated steps."""
    mask = np.array([[0, 1, 0, 0, 1], [1, 1, 1, 0, 0]], "float32")
    arrays, cotangents = numbers((2, 5, 3)), numbers((2, 5, 3), (2, 5, 3))

    def function(tensors):
        given = keras.ops.convert_to_tensor(mask)
        return [
            kernel.move_steps(*tensors, given, False, False),
            kernel.move_steps(*tensors, given, True, True),
        ]

    front, repeat = np.zeros((2, 2, 5, 5))
    for row, counts in enumerate(mask):
        place = -1
        for step, count in enumerate(counts):
            if count:
                place += 1
                front[row, place, step] = 1
            if place >= 0:
                repeat[row, step, place] = 1
    expected = [front @ arrays[0], repeat @ arrays[0]]
    moves = np.swapaxes([front, repeat], -1, -2)
    expected.append((moves @ np.stack(cotangents)).sum(0))
    return function, arrays, cotangents, expected


def _call_native(run, sequences, mask, to_places, with_masked):
    flags = TO_PLACES * bool(to_places) + WITH_MASKED * bool(with_masked)
    mask = ops.cast(mask, sequences.dtype)
    (moved,) = run(Call("move_steps", flags), sequences, mask)
    return moved


def _call_plain(_, call, sequences, mask):
    return (_moved(call.flags, sequences, mask),)


def _call_plain_gradient(_, call, given):
    return (_moved(call.flags ^ TO_PLACES, given["d_moved"], given["mask"]),)


def _moved(flags, sequences, mask):
    to_places, with_masked = bool(flags & TO_PLACES), bool(flags & WITH_MASKED)
    return move_steps(sequences, mask, to_places, with_masked)


OPERATION = Operation(
    function="move_steps",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.move_steps,
        "gathers": lambda kernel: move_steps,
    },
    plain=lambda kernel: move_steps,
    call_native=_call_native,
    call_plain=_call_plain,
    call_plain_gradient=_call_plain_gradient,
    self_tests=(_move_steps_case,),
    along_time=False,
)
