"""The self-test of a kernel: outputs and gradients of tiny cases."""

import math
from functools import partial

import keras
import numpy as np

from keras_linrec import activations
from keras_linrec.kernels import causal_convolution
from keras_linrec.kernels import impulse_response
from keras_linrec.kernels.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.nonlinear_recurrence import Operands

# How far a compiled kernel may be off, by platform. `checking` of each backend
# computes the test's products at the highest precision of the platform: float32
# on CPUs and GPUs, six products of bfloat16 parts on a TPU, whose elementary
# functions also have fewer digits.
_COMPILED = {"cpu": 1e-5, "cuda": 1e-5, "tpu": 1e-4}
# How far a portable kernel may be off. It consists of the framework's own
# operations. Its products may round to 16 bits where `checking` cannot forbid
# it: these cases are off by up to 7e-3 with operands rounded to bfloat16, and
# by 1e-3 with TF32. A wrong kernel is off by more than 0.1.
_PORTABLE = 3e-2


def tolerance(name, platform):
    """The largest error of the kernel `name` that counts as rounding."""
    if name != "native":
        return _PORTABLE
    return _COMPILED.get(platform, min(_COMPILED.values()))


def relative_error(kernel, vjp, is_whole=True):
    """The largest error of outputs and gradients, relative to their maximum.

    Args:
        kernel: a `Kernel` of the registry.
        vjp: `vjp(function, tensors, cotangents)` of the current backend, which
            returns the outputs and the gradients of a function of a list.
        is_whole: whether the nonlinear scan has activations of pairs.
            Defaults to `True`.
    """
    cases = [
        case for name, case in CASES.items() if getattr(kernel, name, None)
    ]
    if kernel.nonlinear_scan and is_whole:
        cases.append(_low_rank_case)
    errors = [_error(vjp, *case(kernel)) for case in cases]
    # A NaN anywhere must not pass as a small error.
    return max(errors, key=lambda error: np.inf if error != error else error)


def scan_error(kernel, vjp, sizes):
    """The error of a complex scan of (batch, time, channels), and gradients."""
    return _error(vjp, *_scan_case(kernel, sizes))


def response_error(kernel, vjp, sizes):
    """The error of an impulse response, and its gradients.

    A kernel without one of its own runs the plain form, by its scan.

    Args:
        kernel, vjp: see `relative_error`.
        sizes: (features, channels, state, time).
    """
    if kernel.impulse_response is None:
        plain = impulse_response.impulse_response
        kernel = kernel._replace(impulse_response=partial(plain, kernel.scan))
    return _error(vjp, *_impulse_response_case(kernel, sizes))


def convolution_error(kernel, vjp, sizes):
    """The error of a causal convolution with GELU, and its gradients.

    A kernel without one of its own runs the framework's Fourier transforms.

    Args:
        kernel, vjp: see `relative_error`.
        sizes: (batch, time, features, channels, taps).
    """
    if kernel.causal_convolution is None:
        plain = causal_convolution.causal_convolution
        kernel = kernel._replace(causal_convolution=plain)
    return _error(vjp, *_causal_convolution_case(kernel, sizes))


def _error(vjp, function, arrays, cotangents, expected):
    got = vjp(
        function,
        [keras.ops.convert_to_tensor(a) for a in arrays],
        [keras.ops.convert_to_tensor(c) for c in cotangents],
    )
    error = 0.0
    for one, other in zip(got, expected, strict=True):
        one = keras.ops.convert_to_numpy(one)
        difference = np.abs(one - other).max() / np.abs(other).max()
        error = max(error, difference) if difference == difference else np.nan
    return error


def _numbers(*shapes):
    generator = np.random.default_rng(0)
    return [
        generator.uniform(-0.7, 0.7, shape).astype("float32")
        for shape in shapes
    ]


def _complex(real, imag):
    return real.astype("float64") + 1j * imag


def _parts(number):
    return [number.real, number.imag]


def _loop(decay, inputs, state, order):
    """Complex outputs of the recurrence, and the state before each step."""
    outputs, before = np.empty_like(inputs), np.empty_like(inputs)
    for step in order:
        before[:, step] = state
        state = decay[:, step] * state + inputs[:, step]
        outputs[:, step] = state
    return outputs, before


def _scan_case(kernel, sizes=(2, 5, 3)):
    """Complex, a decay per step, backward in time."""
    batch, time, channels = sizes
    sequences, states = [sizes] * 2, [(batch, channels)] * 2
    arrays = _numbers(*sequences, *sequences, *states)
    cotangents = _numbers(*sequences, *states)

    def function(tensors):
        outputs, final_state = kernel.scan(
            tuple(tensors[:2]), tuple(tensors[2:4]), tuple(tensors[4:]), True
        )
        return [*outputs, *final_state]

    decay, inputs, state = (
        _complex(*arrays[i : i + 2]) for i in range(0, 6, 2)
    )
    order = range(time - 1, -1, -1)
    outputs, before = _loop(decay, inputs, state, order)
    d_outputs, carry = (
        _complex(*cotangents[i : i + 2]) for i in range(0, 4, 2)
    )
    d_inputs = np.empty_like(inputs)
    for step in reversed(order):
        d_inputs[:, step] = carry = carry + d_outputs[:, step]
        carry = decay[:, step].conj() * carry
    d_decay = before.conj() * d_inputs
    expected = outputs, outputs[:, 0], d_decay, d_inputs, carry
    expected = [part for number in expected for part in _parts(number)]
    return function, arrays, cotangents, expected


def _projected_scan_case(kernel):
    """Complex, a fixed decay, forward in time."""
    parts = [(3,), (4, 3), (3, 2), (2, 3)]
    shapes = [shape for shape in parts for _ in range(2)]
    shapes.insert(2, (2, 5, 4))
    arrays = _numbers(*shapes)
    cotangents = _numbers((2, 5, 2), (2, 3), (2, 3))

    def function(tensors):
        outputs, final_state = kernel.projected_scan(
            tuple(tensors[:2]),
            tensors[2],
            tuple(tensors[3:5]),
            tuple(tensors[5:7]),
            tuple(tensors[7:]),
            False,
        )
        return [outputs, *final_state]

    decay, inputs = _complex(*arrays[:2]), arrays[2].astype("float64")
    into, out, state = (_complex(*arrays[i : i + 2]) for i in range(3, 9, 2))
    decays = np.broadcast_to(decay, (2, 5, 3))
    states, before = _loop(decays, inputs @ into, state, range(5))
    d_outputs, carry = cotangents[0], _complex(*cotangents[1:])
    d_projected = np.empty_like(states)
    d_states = d_outputs @ out.conj().T
    for step in range(4, -1, -1):
        d_projected[:, step] = carry = carry + d_states[:, step]
        carry = decay.conj() * carry
    expected = [
        (states @ out).real,
        *_parts(states[:, -1]),
        *_parts((before.conj() * d_projected).sum((0, 1))),
        (d_projected @ into.conj().T).real,
        *_parts(np.einsum("btf,btc->fc", inputs, d_projected)),
        *_parts(np.einsum("btc,btu->cu", states.conj(), d_outputs)),
        *_parts(carry),
    ]
    return function, arrays, cotangents, expected


def _causal_convolution_case(kernel, sizes=(2, 5, 3, 2, 4)):
    """Three features, two channels, fewer taps than steps, and GELU."""
    batch, time, features, channels, taps = sizes
    arrays = _numbers((batch, time, features), (features, channels, taps))
    cotangents = _numbers((batch, time, features, channels))

    def function(tensors):
        return [kernel.causal_convolution(*tensors, keras.activations.gelu)]

    inputs, response = (array.astype("float64") for array in arrays)
    sums = np.zeros(cotangents[0].shape)
    for lag in range(taps):
        earlier = inputs[:, : time - lag, :, None]
        sums[:, lag:] += response[:, :, lag] * earlier
    # The normal distribution and its density.
    below = 0.5 + 0.5 * np.vectorize(math.erf)(sums / math.sqrt(2))
    density = np.exp(-0.5 * sums**2) / math.sqrt(2 * math.pi)
    slopes = cotangents[0] * (below + sums * density)
    d_inputs, d_response = np.zeros_like(inputs), np.zeros_like(response)
    for lag in range(taps):
        earlier, later = inputs[:, : time - lag, :, None], slopes[:, lag:]
        d_inputs[:, : time - lag] += (response[:, :, lag] * later).sum(-1)
        d_response[:, :, lag] = (earlier * later).sum((0, 1))
    return function, arrays, cotangents, [sums * below, d_inputs, d_response]


def _move_steps_case(kernel):
    """To the front, and to the places with repeated steps."""
    mask = np.array([[0, 1, 0, 0, 1], [1, 1, 1, 0, 0]], "float32")
    arrays, cotangents = _numbers((2, 5, 3)), _numbers((2, 5, 3), (2, 5, 3))

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


def _nonlinear_scan_case(kernel):
    """The midpoint method with a gate, steps that differ in length, resets."""
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    units, batch, time = 3, 2, 5
    resets = np.zeros((batch, time), "float32")
    resets[0, 2] = 1
    arrays = _numbers(
        (batch, time, 2),
        (2, 2 * units),
        (2 * units,),
        (units, 2 * units),
        (batch, time),
        (batch, units),
    )
    cotangents = _numbers((batch, time, units), (batch, units))

    def function(tensors):
        *weights, step_size, initial_state = tensors
        expansion, modulus_bias = map(keras.ops.zeros, ((0, units), (0,)))
        operands = Operands(
            *weights,
            expansion,
            step_size,
            modulus_bias,
            keras.ops.convert_to_tensor(resets),
            initial_state,
        )
        return list(kernel.nonlinear_scan(dynamics, operands, True))

    def loop(inputs, kernel, bias, recurrent, step_size, state):
        def slope(state):
            linear, product = np.split(state @ recurrent, 2, axis=1)
            change = linear + np.tanh(product + drive[:, :units])
            return change / (1 + np.exp(-product - drive[:, units:]))

        outputs = []
        for step in range(time):
            drive = inputs[:, step] @ kernel + bias
            length = step_size[:, step, None]
            state = np.where(resets[:, step, None] > 0, 0.0, state)
            state = state + length * slope(state + length / 2 * slope(state))
            outputs.append(state)
        return np.stack(outputs, axis=1), state

    wide = [array.astype("float64") for array in arrays]
    expected = [*loop(*wide), *_slopes(loop, wide, cotangents)]
    return function, arrays, cotangents, expected


def _low_rank_case(kernel):
    """No solver, a transition in two factors, and an activation of pairs."""
    dynamics = Dynamics(activations.oplu)
    units, batch, time = 4, 2, 5
    arrays = _numbers(
        (batch, time, 3),
        (3, units),
        (units,),
        (units, 1),
        (1, units),
        (batch, units),
    )
    cotangents = _numbers((batch, time, units), (batch, units))

    def function(tensors):
        *weights, initial_state = tensors
        step_size, modulus_bias = map(keras.ops.ones, ((1, 1), (0,)))
        resets = keras.ops.zeros((0, 0))
        operands = Operands(
            *weights, step_size, modulus_bias, resets, initial_state
        )
        return list(kernel.nonlinear_scan(dynamics, operands, True))

    def loop(inputs, kernel, bias, left, right, state):
        outputs = []
        for step in range(time):
            state = state - state @ left @ right
            state = state + inputs[:, step] @ kernel + bias
            # By real parts, because `_slopes` passes complex numbers.
            order = np.argsort(-state.real.reshape(batch, -1, 2), axis=-1)
            pairs = state.reshape(batch, -1, 2)
            state = np.take_along_axis(pairs, order, -1).reshape(batch, units)
            outputs.append(state)
        return np.stack(outputs, axis=1), state

    wide = [array.astype("float64") for array in arrays]
    expected = [*loop(*wide), *_slopes(loop, wide, cotangents)]
    return function, arrays, cotangents, expected


def _slopes(function, arrays, cotangents):
    """Gradients of a NumPy function, one argument after another."""
    slopes = []
    for index, array in enumerate(arrays):
        # The complex-step derivative subtracts nothing, so it loses no digits.
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = array.astype("complex128")
            moved[place] += 1e-30j
            results = function(*arrays[:index], moved, *arrays[index + 1 :])
            slope[place] = sum(
                np.sum(cotangent * result.imag) / 1e-30
                for cotangent, result in zip(cotangents, results)
            )
        slopes.append(slope)
    return slopes


def _systems(features=2, channels=2, state=3):
    """Structured systems that are stable."""
    vector, bands = (state,), (3, state)
    shapes = vector, vector, vector, bands, vector, (features,)
    arrays = [1.0 + 0.3 * array for array in _numbers(*shapes)]
    # Every other feature has small steps, the others large ones.
    arrays[5] *= np.resize([0.02, 0.5], features).astype("float32")
    arrays[0] = -arrays[0]
    # T is far from singular.
    arrays[3][1] += 2.0
    arrays[3][0, -1] = arrays[3][2, -1] = 0.0
    return arrays + _numbers((features, channels, state))


def _impulse_response_case(kernel, sizes=(2, 2, 3, 5)):
    """Five steps of `_systems`."""
    *of_systems, time = sizes
    arrays = _systems(*of_systems)
    (cotangent,) = _numbers((*of_systems[:2], time))

    def function(tensors):
        return [kernel.impulse_response(*tensors, time, 0.5)]

    def define(*arrays):
        return [_impulse_response(time, *arrays)]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *_slopes(define, wide, [cotangent])]
    return function, arrays, [cotangent], expected


def _varying_response_case(kernel):
    """Four steps of `_systems`, of different lengths, with a reset."""
    arrays = [*_systems(), *_numbers((2, 4), (2, 4, 2), (2, 2, 3))]
    arrays[7] += 1.0
    cotangents = _numbers((2, 4, 2, 2), (2, 2, 3))
    resets = np.zeros((2, 4), "float32")
    resets[1, 2] = 1.0

    def function(tensors):
        *steps, inputs, state = tensors
        given = keras.ops.convert_to_tensor(resets)
        return list(kernel.varying_response(*steps, given, inputs, state, 0.5))

    def define(p, d, q, t, b, timescale, rows, time_deltas, inputs, state):
        matrix, outputs = _matrix(p, d, q, t), []
        for step in range(4):
            state = np.where(resets[:, step, None, None] > 0, 0.0, state)
            length = time_deltas[:, step, None, None] * timescale[:, None]
            slope = state @ matrix.T / 2 + b * inputs[:, step, :, None]
            right = (state + length * slope)[..., None]
            left = np.eye(3) - length[..., None] * matrix / 2
            state = np.linalg.solve(left, right)[..., 0]
            outputs.append(np.einsum("fcn,bfn->bfc", rows, state))
        return [np.stack(outputs, axis=1), state]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *_slopes(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _carried_response_case(kernel):
    """Four steps of `_systems`, three in the second row, with a reset."""
    arrays = [*_systems(), *_numbers((2, 4, 2), (2, 2, 3))]
    cotangents = _numbers((2, 4, 2, 2), (2, 2, 3))
    lengths = np.array([4, 3], "float32")
    resets = np.zeros((2, 4), "float32")
    resets[1, 1] = 1.0

    def function(tensors):
        *system, inputs, state = tensors
        given = map(keras.ops.convert_to_tensor, (lengths, resets))
        arguments = *system, *given, inputs, state, 0.5
        return list(kernel.carried_response(*arguments))

    def define(p, d, q, t, b, timescale, rows, inputs, state):
        half = _matrix(p, d, q, t) * timescale[:, None, None] / 2
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
    expected = [*define(*wide), *_slopes(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _matrix(p, d, q, t):
    """A = P (D + T^-1) Q."""
    bands = np.diag(t[0, :-1], 1) + np.diag(t[1]) + np.diag(t[2, :-1], -1)
    return p[:, None] * (np.diag(d) + np.linalg.inv(bands)) * q


def _impulse_response(time, p, d, q, t, b, timescale, output_matrix):
    """The definition, with alpha = 0.5."""
    matrix = _matrix(p, d, q, t)
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


# By operation, a field of the registry's `Kernel`: its first case.
CASES = {
    "scan": _scan_case,
    "projected_scan": _projected_scan_case,
    "impulse_response": _impulse_response_case,
    "varying_response": _varying_response_case,
    "carried_response": _carried_response_case,
    "causal_convolution": _causal_convolution_case,
    "nonlinear_scan": _nonlinear_scan_case,
    "move_steps": _move_steps_case,
}
