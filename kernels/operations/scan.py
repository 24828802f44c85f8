"""The linear scan. Each backend has its own forms, in `scan.py`."""

import numpy as np

from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.tiny_cases import complex_of
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import parts_of
from keras_linrec.kernels.operations.tiny_cases import recurrence
from keras_linrec.kernels.resets import or_none

# How it runs.


def _form_of(case, kernel):
    return "scan", ""


def _scan_case(kernel, sizes=(2, 5, 3)):
    """Complex, a decay per step, backward in time."""
    batch, time, channels = sizes
    sequences, states = [sizes] * 2, [(batch, channels)] * 2
    arrays = numbers(*sequences, *sequences, *states)
    cotangents = numbers(*sequences, *states)

    def function(tensors):
        outputs, final_state = kernel.scan(
            tuple(tensors[:2]), tuple(tensors[2:4]), tuple(tensors[4:]), True
        )
        return [*outputs, *final_state]

    decay, inputs, state = (
        complex_of(*arrays[i : i + 2]) for i in range(0, 6, 2)
    )
    order = range(time - 1, -1, -1)
    outputs, before = recurrence(decay, inputs, state, order)
    d_outputs, carry = (
        complex_of(*cotangents[i : i + 2]) for i in range(0, 4, 2)
    )
    d_inputs = np.empty_like(inputs)
    for step in reversed(order):
        d_inputs[:, step] = carry = carry + d_outputs[:, step]
        carry = decay[:, step].conj() * carry
    d_decay = before.conj() * d_inputs
    expected = outputs, outputs[:, 0], d_decay, d_inputs, carry
    expected = [part for number in expected for part in parts_of(number)]
    return function, arrays, cotangents, expected


def _call_native(run, decay, inputs, initial_state, reverse=False, resets=None):
    call = Call("scan", flags_of(decay, reverse, resets))
    return run(call, decay, inputs, resets, initial_state)


def _call_plain(kernel, call, decay, inputs, resets, initial_state):
    reverse, resets = bool(call.flags & REVERSE), or_none(resets)
    return kernel.scan(decay, inputs, initial_state, reverse, resets)


def _call_plain_gradient(kernel, call, given):
    return adjoint(
        lambda *scanned: kernel.scan(*scanned)[0],
        given["decay"],
        given["outputs"],
        given["initial_state"],
        given["d_outputs"],
        bool(call.flags & REVERSE),
        given["d_final_state"],
        or_none(given["resets"]),
    )


OPERATION = Operation(
    function="scan",
    choose=_form_of,
    forms={"scan": lambda kernel: kernel.scan},
    plain=lambda kernel: kernel.scan,
    call_native=_call_native,
    call_plain=_call_plain,
    call_plain_gradient=_call_plain_gradient,
    self_tests=(_scan_case,),
    odd_sizes=(3, 601, 37),  # batch, time, channels
)
