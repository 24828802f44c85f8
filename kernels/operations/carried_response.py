"""The plain form of responses with states before and after them.

It computes the same as the native kernel, as steps of which some have the
length zero. It gives that kernel its second derivatives, and runs in its place
in programs that turn out to need portable code. Otherwise
`keras_linrec.ops.transition_powers` and `packed_response` are the portable
forms, which are faster.
"""

from functools import partial

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.operations.tiny_cases import stable_systems
from keras_linrec.kernels.operations.tiny_cases import transition_of
from keras_linrec.kernels.operations.varying_response import (
    OPERATION as VARYING,
)


def carried_response(
    varying,
    p,
    d,
    q,
    t,
    b,
    timescale,
    output_matrix,
    lengths,
    resets,
    inputs,
    state,
    alpha,
):
    """The outputs C x_t and final states, of systems with A = P (D + T^-1) Q.

    Args:
        varying: `varying_response` of this package, without its first argument
            or native.
        p, d, q, t, b, timescale, output_matrix: see `varying_response`.
        lengths: tensor (batch,) of the dtype of the others, whole numbers: the
            steps of each row. Outputs behind them are zero.
        resets: tensor (batch, time), see `varying_response`.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step.
        alpha: float, of the generalised bilinear transform.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    place = ops.arange(ops.shape(inputs)[1], dtype=lengths.dtype)
    is_step = place < ops.expand_dims(lengths, -1)
    steps = ops.cast(is_step, inputs.dtype)
    # Behind the lengths, resets would drop the final state.
    resets = resets * steps
    system = p, d, q, t, b, timescale, output_matrix
    outputs, final_state = varying(*system, steps, resets, inputs, state, alpha)
    return ops.where(is_step[:, :, None, None], outputs, 0.0), final_state


# How it runs.


def _form_of(case, kernel):
    return fused(case, kernel.carried_response, "blocks")


def _on_plain_steps(kernel):
    return partial(carried_response, VARYING.plain(kernel))


def _carried_response_case(kernel):
    """Four steps of `stable_systems`, three in the second row, with a reset."""
    arrays = [*stable_systems(), *numbers((2, 4, 2), (2, 2, 3))]
    cotangents = numbers((2, 4, 2, 2), (2, 2, 3))
    lengths = np.array([4, 3], "float32")
    resets = np.zeros((2, 4), "float32")
    resets[1, 1] = 1.0

    def function(tensors):
        *system, inputs, state = tensors
        given = map(keras.ops.convert_to_tensor, (lengths, resets))
        arguments = *system, *given, inputs, state, 0.5
        return list(kernel.carried_response(*arguments))

    def define(p, d, q, t, b, timescale, rows, inputs, state):
        half = transition_of(p, d, q, t) * timescale[:, None, None] / 2
        drive, outputs = timescale[:, None] * b, []
        for step in range(4):
            before = np.where(resets[:, step, None, None] > 0, 0.0, state)
            right = before + np.einsum("fnm,bfm->bfn", half, before)
            right = right + drive * inputs[:, step, :, None]
            left = np.eye(3) - half
            after = np.linalg.solve(left, right[..., None])[..., 0]
            is_step = (step < lengths)[:, None, None]
            state = np.where(is_step, after, state)
            output = np.einsum("fcn,bfn->bfc", rows, state)
            outputs.append(np.where(is_step, output, 0.0))
        return [np.stack(outputs, axis=1), state]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _call_native(run, *arguments):
    *arguments, alpha = arguments
    return run(Call("carried_response", 0, (float(alpha),)), *arguments)


def _call_plain(kernel, call, *arguments):
    varying = kernel.varying_response or VARYING.plain(kernel)
    return carried_response(varying, *arguments, call.number("alpha"))


OPERATION = Operation(
    function="carried_response",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.carried_response,
        # `ops.transition_powers` or `ops.packed_response` computes the blocks.
        "blocks": lambda kernel: None,
    },
    plain=_on_plain_steps,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_carried_response_case,),
    along_time=False,
)
