"""The scan of diagonal systems whose steps differ in length."""

from functools import partial

import keras
import numpy as np
from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import reciprocal
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.double_precision import tanh
from keras_linrec.kernels.full_precision import einsum
from keras_linrec.kernels.native.call_encoding import BILINEAR
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import reset_flag
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.resets import or_none


def discretise(eigenvalues, timescale, method="zoh"):
    """What a step of length dt multiplies z by, and what b u.

        decay = exp(lambda dt),  gain = (exp(lambda dt) - 1) / lambda

    by zero-order hold, and by the bilinear method

        decay = (1 + lambda dt / 2) / (1 - lambda dt / 2)
        gain = dt / (1 - lambda dt / 2)

    Args:
        eigenvalues: pair of tensors (channels,), lambda.
        timescale: tensor (..., channels), dt. Where it is 0, a step leaves z
            as it is, with finite derivatives.
        method: `"zoh"`, the default, or `"bilinear"`.

    Returns:
        `(decay, gain)`, pairs of tensors of the shape of `timescale`.

    Example:

    >>> from keras import ops
    >>> from keras_linrec.ops import continuous_diagonal
    >>> decay, gain = continuous_diagonal.discretise(
    ...     (ops.zeros(1), ops.zeros(1)), ops.ones(1)
    ... )
    >>> float(decay[0][0]), float(gain[0][0])
    (1.0, 1.0)
    """
    angle = tuple(part * timescale for part in eigenvalues)
    return _METHODS[method](angle, timescale)


def _bilinear(angle, timescale):
    real, imag = angle
    divided = reciprocal((1.0 - 0.5 * real, -0.5 * imag))
    decay = multiply((1.0 + 0.5 * real, 0.5 * imag), divided)
    return decay, tuple(timescale * part for part in divided)


def _zero_order_hold(angle, timescale):
    """exp(z), and dt (exp(z) - 1) / z, by half the angle b of z = a + i b:

    exp(z) - 1 = (exp(a) + 1) exp(i b / 2) (tanh(a / 2) cos(b / 2) +
    i sin(b / 2)), of which no part loses digits where z is small. (ONNX has
    no expm1.) The derivatives of the quotient do, so that a small z has the
    series.
    """
    real, imag = angle
    growth = ops.exp(real)
    turn = cos(0.5 * imag), sin(0.5 * imag)
    decay = tuple(growth * part for part in multiply(turn, turn))
    tangent = tanh(0.5 * real)
    most = _MOST_BY_SERIES[keras.backend.standardize_dtype(real.dtype)]
    is_small = real * real + imag * imag < most * most
    divided = reciprocal((ops.where(is_small, 1.0, real), imag))
    quotient = multiply((tangent * turn[0], turn[1]), divided)
    scale = growth + 1.0
    quotient = multiply(tuple(scale * part for part in turn), quotient)
    series = _series(tuple(ops.where(is_small, part, 0.0) for part in angle))
    return decay, tuple(
        timescale * ops.where(is_small, near, far)
        for near, far in zip(series, quotient)
    )


# The largest angles whose quotient is its series. The first term that is left
# out is 1e-13 and 2e-22, and the quotient's slope loses 5 and 10 bits beyond.
_MOST_BY_SERIES = {"float32": 0.03, "float64": 1e-3}


def _series(z):
    """(exp(z) - 1) / z = 1 + z / 2 + z^2 / 6 + ... + z^5 / 720."""
    total = (1.0, 0.0)
    for divisor in range(6, 1, -1):
        real, imag = multiply(z, total)
        total = (1.0 + real / divisor, imag / divisor)
    return total


_METHODS = {"zoh": _zero_order_hold, "bilinear": _bilinear}

# States whose factors are computed at once: a scan of all of them is slow
# beyond the processor's cache.
_STATES_AT_ONCE = 256


def diagonal_scan_irregular(
    scan,
    eigenvalues,
    output_kernel,
    time_deltas,
    resets,
    inputs,
    initial_state,
    bilinear=False,
):
    """`(outputs, final_state)`, from the factors of all steps.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse, resets)` on tuples
            of tensors, which returns `(outputs, final_state)`.
        eigenvalues: pair (n, features).
        output_kernel: pair (channels, n, features).
        time_deltas: tensor (batch, time).
        resets: see `resets.py`, or `None`.
        inputs: tensor (batch, time, parts, features), one part or two.
        initial_state: pair (batch, n, features).
        bilinear: whether the steps are those of the bilinear method. Defaults
            to `False`: zero-order hold.

    Returns:
        A tensor (batch, time, channels, features) and a pair (batch, n,
        features).
    """
    size, features = eigenvalues[0].shape
    at_once = max(1, _STATES_AT_ONCE // max(size, 1))
    method = "bilinear" if bilinear else "zoh"
    found = []
    for first in range(0, max(features, 1), at_once):
        group = slice(first, min(first + at_once, features))
        of_group = [
            tuple(part[..., group] for part in parts)
            for parts in (eigenvalues, output_kernel, initial_state)
        ]
        given = time_deltas, resets, inputs[..., group]
        found.append(_run(scan, *of_group, *given, method))
    outputs, real, imag = (
        ops.concatenate(parts, axis=-1) for parts in zip(*found)
    )
    return outputs, (real, imag)


def _run(scan, eigenvalues, kernel, state, time_deltas, resets, inputs, method):
    batch, time, parts, features = ops.shape(inputs)
    size = eigenvalues[0].shape[0]
    decay, gain = discretise(eigenvalues, time_deltas[:, :, None, None], method)
    entering = [inputs[:, :, part : part + 1] for part in range(parts)]
    if parts == 1:
        entering = tuple(part * entering[0] for part in gain)
    else:
        entering = multiply(gain, entering)

    def flat(parts, *steps):
        return tuple(
            ops.reshape(part, (batch, *steps, size * features))
            for part in parts
        )

    outputs, final_state = scan(
        flat(decay, time), flat(entering, time), flat(state), False, resets
    )
    real, imag = (
        einsum(
            "btnf,cnf->btcf",
            ops.reshape(part, (batch, time, size, features)),
            factors,
        )
        for part, factors in zip(outputs, kernel)
    )
    shape = batch, size, features
    return real - imag, *(ops.reshape(part, shape) for part in final_state)


# How it runs.

# Steps from one checkpoint to the next: the gradient keeps 24 KiB of a block.
_BLOCK = 64


def _form_of(case, kernel):
    return fused(case, kernel.diagonal_scan_irregular, "scan")


def _plain(kernel):
    return partial(diagonal_scan_irregular, kernel.scan)


def _call_native(
    run,
    eigenvalues,
    output_kernel,
    time_deltas,
    resets,
    inputs,
    initial_state,
    bilinear=False,
):
    flags = COMPLEX + BILINEAR * bilinear + reset_flag(resets)
    return run(
        Call("diagonal_scan_irregular", flags, (_BLOCK,)),
        eigenvalues,
        output_kernel,
        time_deltas,
        resets,
        inputs,
        initial_state,
    )


def _call_plain(kernel, call, *quantities):
    *system, time_deltas, resets, inputs, initial_state = quantities
    return diagonal_scan_irregular(
        kernel.scan,
        *system,
        time_deltas,
        or_none(resets),
        inputs,
        initial_state,
        bool(call.flags & BILINEAR),
    )


def _case(bilinear, parts, kernel):
    """Two rows of five steps, with a reset; one eigenvalue is 0."""
    batch, time, channels, size, features = 2, 5, 2, 3, 2
    steps = batch, time
    shapes = (
        *((size, features),) * 2,
        *((channels, size, features),) * 2,
        steps,
        (*steps, parts, features),
        *((batch, size, features),) * 2,
    )
    arrays = numbers(*shapes)
    arrays[0][0, 0] = arrays[1][0, 0] = 0.0
    arrays[4] += 1.0
    cotangents = numbers((*steps, channels, features), *shapes[-2:])
    resets = np.zeros(steps, "float32")
    resets[1, 2] = 1.0

    def function(tensors):
        *system, time_deltas, inputs, real, imag = tensors
        outputs, final_state = kernel.diagonal_scan_irregular(
            system[:2],
            system[2:],
            time_deltas,
            keras.ops.convert_to_tensor(resets),
            inputs,
            (real, imag),
            bilinear,
        )
        return [outputs, *final_state]

    def define(*arrays):
        # The slopes of a definition are found by steps into the complex plane,
        # so that its own complex numbers are pairs.
        *system, time_deltas, inputs, real, imag = arrays
        state, outputs = _Pair(real, imag), []
        rates, read = _Pair(*system[:2]), _Pair(*system[2:])
        for t in range(time):
            dropped = resets[:, t, None, None] > 0
            state = _Pair(*(np.where(dropped, 0.0, part) for part in state))
            length = time_deltas[:, t, None, None]
            angle = rates.scaled(length)
            if bilinear:
                left = _Pair(1.0 - angle[0] / 2, -angle[1] / 2)
                right = _Pair(1.0 + angle[0] / 2, angle[1] / 2)
                decay = right.over(left)
                gain = _Pair(length + 0.0 * angle[0], 0.0).over(left)
            else:
                growth = np.exp(angle[0])
                decay = _Pair(
                    growth * np.cos(angle[1]), growth * np.sin(angle[1])
                )
                gain = _zoh_gain(angle).scaled(length)
            entering = _Pair(inputs[:, t, 0:1], inputs[:, t, 1:2])
            if parts == 1:
                entering = _Pair(inputs[:, t, 0:1], 0.0)
            moved, added = decay.times(state), gain.times(entering)
            state = _Pair(moved[0] + added[0], moved[1] + added[1])
            found = _Pair(*(part[:, None] for part in state)).times(read)
            outputs.append(np.sum(found[0], axis=2))
        return [np.stack(outputs, axis=1), *state]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


class _Pair(tuple):
    """A complex number as a pair of arrays, which may be complex themselves."""

    def __new__(cls, real, imag):
        return super().__new__(cls, (real, imag))

    def times(self, other):
        (a, b), (c, d) = self, other
        return _Pair(a * c - b * d, a * d + b * c)

    def over(self, other):
        c, d = other
        square = c * c + d * d
        return self.times((c / square, -d / square))

    def scaled(self, factor):
        return _Pair(factor * self[0], factor * self[1])


def _zoh_gain(angle):
    """(exp(z) - 1) / z by its series, for small z."""
    total = power = _Pair(1.0 + 0.0 * angle[0], 0.0 * angle[0])
    for k in range(2, 25):
        power = power.times(angle).scaled(1.0 / k)
        total = _Pair(total[0] + power[0], total[1] + power[1])
    return total


OPERATION = Operation(
    function="diagonal_scan_irregular",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.diagonal_scan_irregular,
        "scan": _plain,
    },
    plain=_plain,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(
        partial(_case, False, 1),
        partial(_case, True, 2),
    ),
    along_time=False,
)
