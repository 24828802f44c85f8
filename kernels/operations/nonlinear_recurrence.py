"""Nonlinear recurrences h_t = f(h_{t-1}, x_t), in their plain form.

It computes the same as the fused kernels, in `keras.ops`: for single steps, for
second derivatives, and where no fused kernel runs.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_linrec import activations
from keras_linrec import double_precision
from keras_linrec.kernels import backends
from keras_linrec.kernels import resets
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.native.call_encoding import GATED
from keras_linrec.kernels.native.call_encoding import LINEAR
from keras_linrec.kernels.native.call_encoding import PER_STEP
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import STEP_GRADIENT
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import solver_flags
from keras_linrec.kernels.native.call_encoding import solver_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import is_short
from keras_linrec.kernels.operations.record import uses_pallas
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of

# Explicit Runge-Kutta methods in which stage i starts from h + shift_i dt
# k_{i-1}: (shifts, weights of the slopes k_i).
METHODS = {
    "euler": ((0.0,), (1.0,)),
    "rk2": ((0.0, 0.5), (0.0, 1.0)),
    "rk4": ((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


class Dynamics(NamedTuple):
    """The form of a recurrence, without its numbers.

    Without a solver the next state is activation(p) with p = W h + z. A solver
    follows h' = A h + activation(p), times sigmoid(W h + z') if gated.
    """

    activation: Callable
    solver: str | None = None
    gated: bool = False
    # Whether the gradient of the step sizes is needed.
    trained_steps: bool = True


class Operands(NamedTuple):
    """The numbers of a recurrence; kernels multiply row vectors from the right.

    All but `modulus_bias` and `resets` are differentiable.
    """

    inputs: object  # (batch, time, features)
    input_kernel: object  # (features, units), then the gate's columns
    bias: object  # (units,), likewise
    recurrent_kernel: object  # W^T (units, units), after A^T if there is one
    expansion: object  # if it has rows, W^T = I - recurrent_kernel @ expansion
    step_size: object  # (1, 1) or (batch, time)
    modulus_bias: object  # (units // 2,), or (0,)
    resets: object  # (batch, time), see `resets.py`; or (0, 0)
    initial_state: object  # (batch, units)


def recurrence(loop, dynamics, operands):
    """The states after all steps, (batch, time, units).

    Args:
        loop: the backend's `loop(step, sequences, state, constants)`, which
            returns the states (batch, time, units) of calling
            `step(state, items, constants)` with the items of each time step
            of `sequences`, each (batch, time, count).
        dynamics: `Dynamics`.
        operands: `Operands`.
    """
    inputs, weights = operands.inputs, operands[3:5]
    drive = drive_of(operands)
    sequences = [drive]
    varying = operands.step_size.shape[1] != 1 or inputs.shape[1] == 1
    if varying:
        ones = ops.ones_like(drive[:, :, :1])
        sequences.append(ops.expand_dims(operands.step_size, -1) * ones)
    with_resets = resets.are_given(operands.resets)
    if with_resets:
        sequences.append(ops.expand_dims(operands.resets, -1))

    def step(state, items, constants):
        *weights, step_size, modulus_bias = constants
        if varying:
            step_size = items[1]
        if with_resets:
            state = ops.where(items[-1] != 0, 0.0, state)
        return next_state(
            dynamics, state, items[0], weights, step_size, modulus_bias
        )

    constants = (*weights, operands.step_size, operands.modulus_bias)
    if inputs.shape[1] == 1:
        items = [part[:, 0] for part in sequences]
        state = step(operands.initial_state, items, constants)
        return ops.expand_dims(state, 1)
    return loop(step, sequences, operands.initial_state, constants)


def with_last_state(loop, dynamics, operands):
    """The states of `recurrence`, and the last one, (batch, units)."""
    outputs = recurrence(loop, dynamics, operands)
    return outputs, outputs[:, -1]


def next_state(dynamics, state, drive, weights, step_size, modulus_bias):
    """The state after one step.

    Args:
        dynamics: `Dynamics`.
        state: (batch, units).
        drive: inputs @ input_kernel + bias, (batch, units), followed by the
            gate's columns if there is one.
        weights: `recurrent_kernel` and `expansion` of `Operands`.
        step_size: (1, 1) or (batch, 1).
        modulus_bias: as in `Operands`.
    """
    drives = ops.split(drive, 2, axis=-1) if dynamics.gated else [drive]

    def slope(state):
        products = _products(state, weights)
        return slope_of(dynamics, drives, products, modulus_bias)

    if dynamics.solver is None:
        return slope(state)
    shifts, shares = METHODS[dynamics.solver]
    total, last = 0.0, None
    for shift, share in zip(shifts, shares):
        start = state if last is None else state + shift * step_size * last
        last = slope(start)
        total = total + share * last if share else total
    return state + step_size * total


def _products(state, weights):
    """A h, if there is an A, and W h, as rows."""
    recurrent_kernel, expansion = weights
    product = matmul(state, recurrent_kernel)
    if expansion.shape[0]:
        return [state - matmul(product, expansion)]
    if recurrent_kernel.shape[1] == state.shape[1]:
        return [product]
    return ops.split(product, 2, axis=-1)


def slope_of(dynamics, drives, products, modulus_bias=None):
    """The derivative of a state by time; without a solver, the next state.

    Args:
        dynamics: `Dynamics`.
        drives: list, that of the state, followed by the gate's if there is
            one.
        products: list, A h, if there is an A, and W h.
        modulus_bias: as in `Operands`, or `None`: without rows.
    """
    *linear, product = products
    argument = product + drives[0]
    if modulus_bias is not None and modulus_bias.shape[0]:
        change = dynamics.activation(argument, modulus_bias)
    else:
        change = double_precision.activate(dynamics.activation, argument)
    for part in linear:
        change = part + change
    if not dynamics.gated:
        return change
    return ops.sigmoid(product + drives[1]) * change


def drive_of(operands):
    product = double_precision.product(operands.inputs, operands.input_kernel)
    return product + operands.bias


# What the CUDA core, which has the sequential part, leaves to the frameworks:
# large products, and elementwise functions of all steps at once, since a
# gradient knows all states.


def sequential_operands(operands):
    """What the sequential part takes, of `Operands`."""
    return (
        drive_of(operands),
        matrix_of(operands),
        operands.step_size,
        operands.resets,
        operands.initial_state,
    )


def cotangents(call, given, sequential, slopes_of):
    """The results of the gradient's call, a list.

    Args:
        call: `Call` of the gradient.
        given: flat list of the arguments of the gradient's call.
        sequential: the core's part, a function of tensors.
        slopes_of: see `stages_of`.
    """
    *operands, outputs, d_outputs, d_final_state = given
    operands, dynamics = Operands(*operands), dynamics_of(call)
    stages = stages_of(dynamics, operands, outputs, slopes_of)
    d_slopes, d_initial_state = sequential(
        factors_of(stages),
        ops.transpose(matrix_of(operands)),
        operands.resets,
        d_outputs,
        d_final_state,
    )
    gradients = gradients_of(dynamics, operands, stages, d_slopes)
    return [*gradients, d_initial_state]


def matrix_of(operands):
    """A, if there is one, and W beside it, for products with rows of states."""
    kernel, expansion = operands.recurrent_kernel, operands.expansion
    if not expansion.shape[0]:
        return kernel
    product = matmul(kernel, expansion)
    return ops.eye(expansion.shape[1], dtype=product.dtype) - product


class Stage(NamedTuple):
    """A stage of the solver in all steps, as the gradient needs it."""

    start: object  # the states at its start, (batch, time, units)
    slope: object  # the derivative of the state by time
    by_products: list  # derivatives of the slope by h A and W h, times the step
    by_drives: list  # those by each part of the drive, times the step


def stages_of(dynamics, operands, outputs, slopes_of):
    """The stages of the solver, a list.

    Args:
        dynamics: `Dynamics`.
        operands: `Operands`.
        outputs: the states after all steps, (batch, time, units).
        slopes_of: from an elementwise function of several tensors and a list
            of them, its value, and its derivative by each.
    """
    before, matrix = _states_before(operands, outputs), matrix_of(operands)
    drives = ops.split(drive_of(operands), 1 + dynamics.gated, axis=-1)
    parts = matrix.shape[1] // matrix.shape[0]
    step_size = operands.step_size[..., None] if dynamics.solver else 1.0

    def function(*given):
        return slope_of(dynamics, given[parts:], given[:parts])

    stages = []
    for shift in METHODS[dynamics.solver or "euler"][0]:
        start = before
        if shift:
            start = before + shift * step_size * stages[-1].slope
        products = ops.split(matmul(start, matrix), parts, axis=-1)
        slope, slopes = slopes_of(function, [*products, *drives])
        slopes = [step_size * part for part in slopes]
        stages.append(Stage(start, slope, slopes[:parts], slopes[parts:]))
    return stages


def factors_of(stages):
    """What the core multiplies by, (batch, stages, time, parts times units)."""
    factors = [ops.concatenate(one.by_products, axis=-1) for one in stages]
    return ops.stack(factors, axis=1)


def gradients_of(dynamics, operands, stages, d_slopes):
    """Cotangents of all operands but the initial state.

    Args:
        dynamics: `Dynamics`.
        operands: `Operands`.
        stages: the result of `stages_of`.
        d_slopes: the cotangents of their slopes, over the step, (batch, stages,
            time, units).
    """
    d_drive, d_matrix, d_step_size = 0.0, 0.0, 0.0
    for place, stage in enumerate(stages):
        d_slope = d_slopes[:, place]
        d_products = _times(d_slope, stage.by_products)
        d_matrix = d_matrix + matmul(_columns(stage.start), _rows(d_products))
        d_drive = d_drive + _times(d_slope, stage.by_drives)
        d_step_size = d_step_size + ops.sum(d_slope * stage.slope, axis=-1)
    if not dynamics.trained_steps:
        d_step_size = ops.zeros_like(operands.step_size)
    elif tuple(operands.step_size.shape) == (1, 1):
        d_step_size = ops.reshape(ops.sum(d_step_size), (1, 1))
    kernel = ops.transpose(operands.input_kernel)
    return [
        double_precision.product(d_drive, kernel),
        _columns(operands.inputs) @ _rows(d_drive),
        ops.sum(d_drive, axis=(0, 1)),
        *_gradients_of_factors(operands, d_matrix),
        d_step_size,
        ops.zeros_like(operands.modulus_bias),
        ops.zeros_like(operands.resets),
    ]


def _gradients_of_factors(operands, d_matrix):
    """Cotangents of the recurrent kernel and of the expansion."""
    kernel, expansion = operands.recurrent_kernel, operands.expansion
    if not expansion.shape[0]:
        return d_matrix, ops.zeros_like(expansion)
    return (
        -matmul(d_matrix, ops.transpose(expansion)),
        -matmul(ops.transpose(kernel), d_matrix),
    )


def _states_before(operands, outputs):
    """The state from which each step starts, (batch, time, units)."""
    start = ops.expand_dims(operands.initial_state, 1)
    before = ops.concatenate([start, outputs[:, :-1]], axis=1)
    if not resets.are_given(operands.resets):
        return before
    is_reset = ops.expand_dims(operands.resets, -1) != 0
    return ops.where(is_reset, ops.zeros_like(before), before)


def _times(d_slope, derivatives):
    return ops.concatenate([d_slope * part for part in derivatives], axis=-1)


def _rows(sequences):
    """(batch, time, n) as (batch times time, n)."""
    return ops.reshape(sequences, (-1, sequences.shape[-1]))


def _columns(sequences):
    return ops.transpose(_rows(sequences))


# How it runs.


# From this many units on, a GPU computes products of all rows faster, despite
# their launches: a thread block of the CUDA core reads the recurrent matrix at
# each step. Estimated, not measured.
_LARGE_MATRIX = 512


def _form_of(case, kernel):
    if kernel.nonlinear_scan is None:
        return "loop", "this kernel has no fused form"
    if not case.known_activation:
        return "loop", "the native kernels lack this activation"
    if is_short(case):
        return "loop", "a few steps"
    if case.platform == "tpu" or uses_pallas(case):
        return "loop", "XLA compiles the loop into one program"
    if case.platform != "cuda":
        return "fused", ""
    if case.pairs:
        return "loop", "an activation of pairs"
    if case.channels > _LARGE_MATRIX:
        return "loop", "the recurrent matrix is too large"
    return "fused", ""


def _loop(kernel):
    """A nonlinear scan, one step after another."""

    def run(dynamics, operands, keep_all=True):
        loop = backends.current().loop
        return with_last_state(loop, dynamics, operands)

    return run


def _nonlinear_scan_case(kernel):
    """The midpoint method with a gate, steps that differ in length, resets."""
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    units, batch, time = 3, 2, 5
    resets = np.zeros((batch, time), "float32")
    resets[0, 2] = 1
    arrays = numbers(
        (batch, time, 2),
        (2, 2 * units),
        (2 * units,),
        (units, 2 * units),
        (batch, time),
        (batch, units),
    )
    cotangents = numbers((batch, time, units), (batch, units))

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
    expected = [*loop(*wide), *slopes_of(loop, wide, cotangents)]
    return function, arrays, cotangents, expected


def _low_rank_case(kernel):
    """No solver, a transition in two factors, and an activation of pairs."""
    dynamics = Dynamics(activations.oplu)
    units, batch, time = 4, 2, 5
    arrays = numbers(
        (batch, time, 3),
        (3, units),
        (units,),
        (units, 1),
        (1, units),
        (batch, units),
    )
    cotangents = numbers((batch, time, units), (batch, units))

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
            # By real parts, because `slopes_of` passes complex numbers.
            order = np.argsort(-state.real.reshape(batch, -1, 2), axis=-1)
            pairs = state.reshape(batch, -1, 2)
            state = np.take_along_axis(pairs, order, -1).reshape(batch, units)
            outputs.append(state)
        return np.stack(outputs, axis=1), state

    wide = [array.astype("float64") for array in arrays]
    expected = [*loop(*wide), *slopes_of(loop, wide, cotangents)]
    return function, arrays, cotangents, expected


def flags_and_leak(dynamics, operands):
    """The flags of a native call, and the slope of its activation below zero.

    The native kernels must have the activation.
    """
    flags, leak = activation_flags(dynamics.activation)
    recurrent = operands.recurrent_kernel
    linear = operands.expansion.shape[0] == 0 and (
        recurrent.shape[1] != recurrent.shape[0]
    )
    flags += (
        PER_STEP * (tuple(operands.step_size.shape) != (1, 1))
        + LINEAR * linear
        + GATED * dynamics.gated
        + STEP_GRADIENT * (dynamics.trained_steps and bool(dynamics.solver))
        + RESETS * resets.are_given(operands.resets)
        + solver_flags(dynamics.solver)
    )
    return flags, leak


def dynamics_of(call):
    """The `Dynamics` that a call's flags encode."""
    return Dynamics(
        activation_of(call.flags, call.number("leak")),
        solver_of(call.flags),
        bool(call.flags & GATED),
        bool(call.flags & STEP_GRADIENT),
    )


def _call_native(run, dynamics, operands, keep_all=True):
    flags, leak = flags_and_leak(dynamics, operands)
    attributes = leak, int(keep_all)
    return run(Call("nonlinear_scan", flags, attributes), *operands)


def _call_plain(_, call, *operands):
    loop = backends.current().loop
    states, last = with_last_state(loop, dynamics_of(call), Operands(*operands))
    return states if call.number("keep") else states[:, :0], last


OPERATION = Operation(
    function="nonlinear_scan",
    choose=_form_of,
    forms={"fused": lambda kernel: kernel.nonlinear_scan, "loop": _loop},
    plain=_loop,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_nonlinear_scan_case,),
    # Activations of pairs.
    self_tests_on_cpu=(_low_rank_case,),
)
