"""The impulse response of structured systems.

The plain form runs for the native kernel's second derivatives, and in its place
in programs that turn out to need portable code. Elsewhere the blocks are the
portable form, which is faster, and on some GPUs the contour, which is faster
still.
"""

import functools
from functools import partial

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.exporting import exporting
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.record import uses_pallas
from keras_linrec.kernels.operations.structured import tridiagonal
from keras_linrec.kernels.operations.structured.discretization import discretise
from keras_linrec.kernels.operations.structured.discretization import (
    discretised,
)
from keras_linrec.kernels.operations.structured.impulse_by_blocks import (
    impulse_by_blocks,
)
from keras_linrec.kernels.operations.structured.powers import TransitionPowers
from keras_linrec.kernels.operations.structured.powers import impulse_by_powers
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.operations.tiny_cases import stable_systems
from keras_linrec.kernels.operations.tiny_cases import transition_of


def impulse_response(
    scan, p, d, q, t, b, timescale, output_matrix, time, alpha
):
    """K_k = C Abar^k Bbar for k < time, of systems with A = P (D + T^-1) Q.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`.
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T: superdiagonal (its last entry is
            ignored), diagonal, subdiagonal (likewise).
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.
        alpha: float, of the generalised bilinear transform.

    Returns:
        A tensor (features, channels, time).
    """
    solve = functools.partial(tridiagonal.solve_by_scans, scan)
    # Abar - I, because Abar itself would be rounded near the identity.
    delta, input_vector = discretise(solve, p, d, q, t, b, timescale, alpha)
    columns = input_vector[:, :, None]
    rows, size, count = output_matrix, 1, 1
    while size * count < time:
        if size > 1 or count > 1:
            delta = 2.0 * delta + matmul(delta, delta)
        if size * size < time:
            later = columns + matmul(delta, columns)
            columns = ops.concatenate([columns, later], 2)
            size *= 2
        else:
            later = rows + matmul(rows, delta)
            rows = ops.concatenate([rows, later], 1)
            count *= 2
    features, channels, _ = output_matrix.shape
    response = matmul(rows, columns)
    response = ops.reshape(response, (features, count, channels, size))
    response = ops.transpose(response, (0, 2, 1, 3))
    response = ops.reshape(response, (features, channels, count * size))
    return response[:, :, :time]


# How it runs.


def _form_of(case, kernel):
    if not case.operators and isinstance(case.time, int):
        return "scans", "the blocks have a custom gradient too"
    form, reason = _native_or_blocks(case, kernel)
    if form == "blocks" and _runs_on_a_contour(case):
        return "contour", "all steps at once, in float64; " + reason
    return form, reason


def _native_or_blocks(case, kernel):
    # In CUDA the gradient has 24 numbers for each entry of the state in a
    # block's memory, of which the smallest GPUs have 64 KiB.
    if case.platform == "cuda" and case.channels > 256:
        return "blocks", "the state is too large"
    return fused(
        case,
        kernel.impulse_response,
        "blocks",
        fixed=True,
        on_gpus=not uses_pallas(case),
    )


def _runs_on_a_contour(case):
    is_known = isinstance(case.time, int) and not exporting()
    return is_known and _contour_is_fast(case.platform, case.time)


def _contour_is_fast(platform, time):
    # Other frameworks would launch some 60 kernels for each state.
    if keras.backend.backend() != "jax":
        return False
    return backends.current().contour_is_fast(platform, time)


def _instead(kernel):
    is_fast = _contour_is_fast(backends.current().platform(), time=1)
    return _on_a_contour(kernel) if is_fast else _on_scans(kernel)


def _on_a_contour(kernel):
    return backends.current().by_contour(_in_blocks)


def _in_blocks(p, d, q, t, b, timescale, output_matrix, time, alpha):
    delta, input_vector = discretised(p, d, q, t, b, timescale, alpha)
    if isinstance(time, int):
        return impulse_by_blocks(delta, input_vector, output_matrix, time)
    powers = TransitionPowers(delta, time)
    return impulse_by_powers(powers, input_vector, output_matrix)


def _on_scans(kernel):
    return partial(impulse_response, kernel.scan)


def _impulse_response_case(kernel, sizes=(2, 2, 3, 5)):
    """Five steps of `stable_systems`."""
    *of_systems, time = sizes
    arrays = stable_systems(*of_systems)
    (cotangent,) = numbers((*of_systems[:2], time))

    def function(tensors):
        return [kernel.impulse_response(*tensors, time, 0.5)]

    def define(*arrays):
        return [_defined(time, *arrays)]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, [cotangent])]
    return function, arrays, [cotangent], expected


def _defined(time, p, d, q, t, b, timescale, output_matrix):
    """The definition, with alpha = 0.5."""
    matrix = transition_of(p, d, q, t)
    identity = np.eye(len(p))
    response = []
    for step, rows in zip(timescale, output_matrix):
        inverse = np.linalg.inv(identity - 0.5 * step * matrix)
        transition = inverse @ (identity + 0.5 * step * matrix)
        states = [step * inverse @ b]
        for _ in range(time - 1):
            states.append(transition @ states[-1])
        response.append(rows @ np.stack(states, axis=-1))
    return np.stack(response)


def _call_native(run, *arguments):
    *arguments, time, alpha = arguments
    call = Call("impulse_response", 0, (time, float(alpha)))
    (response,) = run(call, *arguments)
    return response


def _call_plain(kernel, call, *arguments):
    time, alpha = call.number("time"), call.number("alpha")
    return (impulse_response(kernel.scan, *arguments, time, alpha),)


OPERATION = Operation(
    function="impulse_response",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.impulse_response,
        "scans": _on_scans,
        "blocks": lambda kernel: _in_blocks,
        "contour": _on_a_contour,
    },
    plain=_on_scans,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_impulse_response_case,),
    instead=_instead,
    odd_sizes=(3, 2, 17, 45),  # features, channels, state, time
)
