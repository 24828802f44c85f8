"""The scan of structured systems, from the states before it to those after.

The plain form computes it as steps of which some have the length zero. It gives
the native kernel its second derivatives, and runs in its place in programs that
turn out to need portable code. Elsewhere `scan_by_powers` and `scan_by_chunks`
are the portable forms, which are faster.
"""

from functools import partial

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels.native.call_encoding import FROM_ZEROS
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.structured.irregular_scan import (
    OPERATION as IRREGULAR,
)
from keras_linrec.kernels.operations.structured.scan_by_chunks import (
    scan_by_chunks,
)
from keras_linrec.kernels.operations.structured.scan_by_powers import (
    scan_by_powers,
)
from keras_linrec.kernels.operations.structured.systems import zero_state
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.operations.tiny_cases import stable_systems
from keras_linrec.kernels.operations.tiny_cases import transition_of


def structured_scan(
    irregular,
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
        irregular: `structured_scan_irregular` of this package, without its
            first argument, or native.
        p, d, q, t, b, timescale, output_matrix: see
            `structured_scan_irregular`.
        lengths: tensor (batch,) of the dtype of the others, whole numbers: the
            steps of each row. Outputs behind them are zero.
        resets: tensor (batch, time), see `structured_scan_irregular`.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step, or `None`:
            zeros.
        alpha: float, of the generalised bilinear transform.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    if state is None:
        state = zero_state(inputs, output_matrix)
    place = ops.arange(0, ops.shape(inputs)[1], dtype=lengths.dtype)
    is_step = place < ops.expand_dims(lengths, -1)
    steps = ops.cast(is_step, inputs.dtype)
    # Behind the lengths, resets would drop the final state.
    resets = resets * steps
    system = p, d, q, t, b, timescale, output_matrix
    outputs, final_state = irregular(
        *system, steps, resets, inputs, state, alpha
    )
    return ops.where(is_step[:, :, None, None], outputs, 0.0), final_state


# How it runs.


def _form_of(case, kernel):
    otherwise = "chunks" if case.resets else "powers"
    return fused(case, kernel.structured_scan, otherwise)


def _by_kernel(kernel):
    def run(*arguments, require_bounded):
        *system, lengths, resets, inputs, state, alpha = arguments
        dtype = inputs.dtype
        if resets is None:
            resets = ops.zeros(ops.shape(inputs)[:2], dtype)
        outputs, final_state = kernel.structured_scan(
            *system,
            # Exact in float32 up to 16 million steps.
            ops.cast(lengths, dtype),
            ops.cast(resets, dtype),
            inputs,
            state,
            alpha,
        )
        given = (inputs,) if state is None else (inputs, state)
        return outputs, require_bounded(final_state, given)

    return run


def _on_plain_steps(kernel):
    return partial(structured_scan, IRREGULAR.plain(kernel))


def _structured_scan_case(kernel):
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
        return list(kernel.structured_scan(*arguments))

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
    *others, state, alpha = arguments
    flags = 0
    if state is None:
        flags, state = FROM_ZEROS, ops.zeros((0, 0, 0), others[-1].dtype)
    call = Call("structured_scan", flags, (float(alpha),))
    return run(call, *others, state)


def _call_plain(kernel, call, *arguments):
    irregular = kernel.structured_scan_irregular or IRREGULAR.plain(kernel)
    *system, lengths, resets, inputs, state = arguments
    if call.flags & FROM_ZEROS:
        # The sum of nothing, which gives `state` a gradient.
        state = zero_state(inputs, system[-1]) + ops.sum(state)
    return structured_scan(
        irregular,
        *system,
        lengths,
        resets,
        inputs,
        state,
        call.number("alpha"),
    )


OPERATION = Operation(
    function="structured_scan",
    choose=_form_of,
    forms={
        "fused": _by_kernel,
        "powers": lambda kernel: scan_by_powers,
        "chunks": lambda kernel: scan_by_chunks,
    },
    plain=_on_plain_steps,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_structured_scan_case,),
    along_time=False,
)
