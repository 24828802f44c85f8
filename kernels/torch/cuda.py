"""Calls of the CUDA core on PyTorch's tensors.

Plain functions without gradients: `operators.py` makes operators of them. The
linear scan is called as that of the C++ core is. Of the nonlinear scan the CUDA
core has the sequential part, and the functions below the rest.
"""

import math
from operator import matmul
from typing import NamedTuple

import keras
import torch

from keras_linrec.double_precision import leaky_relu
from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.operations.nonlinear_recurrence import METHODS
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import dynamics_of
from keras_linrec.kernels.torch.products import in_full_precision
from keras_linrec.kernels.torch.tensors import device_of
from keras_linrec.kernels.torch.tensors import number_flag


def call(name, flags, sizes, arguments, results):
    """Queue a function of the CUDA core on the current stream.

    `arguments` and `results` are tensors in the order of the C function, all on
    one device; `flags` are without the number type. The call does not wait for
    the results.
    """
    # They live until the call has been queued. PyTorch gives their memory only
    # to work that the stream runs afterwards.
    arguments = [tensor.contiguous() for tensor in arguments]
    flags |= number_flag(name, arguments)
    device = device_of(name, [*arguments, *results])
    function = f"keras_linrec_{name}"
    scratch = torch.empty(
        cuda.scratch_bytes(function, flags, sizes),
        dtype=torch.uint8,
        device=device,
    )
    stream = None
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
    cuda.call(
        function,
        flags,
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
        scratch.data_ptr(),
        stream,
    )


# The nonlinear scan. Its operands have a leading axis of systems. The kernels
# compute what is sequential; large products do the rest for all steps at once.


def nonlinear_scan(called, operands):
    """States of all steps, or of none if the call keeps none, and the last one.

    `operands` are those of `operations/nonlinear_recurrence.py`, in a list and
    with any leading axes; `called` is a `Call`.
    """
    keep = called.number("keep")
    with _without_autocast(operands):
        given = _with_systems(operands)
        groups, batch, time, units = _shape(given)
        outputs = given.inputs.new_empty(
            (groups, batch, time if keep else 0, units)
        )
        final_state = given.inputs.new_empty((groups, batch, units))
        drive, matrix = _drive(given), _matrix(given)
        call(
            "nonlinear_scan",
            called.flags,
            (*_shape(given), keep, bits_of(called.number("leak"))),
            (
                drive,
                matrix,
                given.step_size,
                given.resets,
                given.initial_state,
            ),
            (outputs, final_state),
        )
        leading = operands[0].shape[:-3]
        return [
            part.reshape(*leading, *part.shape[1:])
            for part in (outputs, final_state)
        ]


def nonlinear_scan_backward(called, tensors):
    """Cotangents of the operands; a `d_outputs` without steps means zeros."""
    *operands, outputs, d_outputs, d_final_state = tensors
    with _without_autocast(operands):
        given = _with_systems(operands)
        groups, batch, _, _ = _shape(given)
        outputs, d_outputs, d_final_state = (
            part.reshape(groups, batch, *rest)
            for part, rest in (
                (outputs, outputs.shape[-2:]),
                (d_outputs, d_outputs.shape[-2:]),
                (d_final_state, d_final_state.shape[-1:]),
            )
        )
        dynamics = dynamics_of(called)
        stages = _stages(dynamics, called.number("leak"), given, outputs)
        factors = torch.stack([stage.factors for stage in stages], 2)
        d_slopes = outputs.new_empty(
            (groups, batch, len(stages), *outputs.shape[2:])
        )
        d_initial_state = outputs.new_empty(given.initial_state.shape)
        kept = d_outputs.shape[2] > 0
        call(
            "nonlinear_scan_backward",
            called.flags,
            (*_shape(given), int(kept), bits_of(called.number("leak"))),
            (
                factors,
                _matrix(given).mT,
                given.resets,
                d_outputs,
                d_final_state,
            ),
            (d_slopes, d_initial_state),
        )
        gradients = _gradients(dynamics, given, stages, d_slopes)
        return [
            part.reshape(operand.shape)
            for part, operand in zip((*gradients, d_initial_state), operands)
        ]


class _Stage(NamedTuple):
    """One stage of the solver in all steps, as the gradient needs it."""

    start: object  # the states at the start of the stage
    slope: object  # the derivative of the state by time
    factors: object  # derivatives of the slope by h A and h R, times the step
    drive: object  # derivatives of the slope by the drive, times the step


def _stages(dynamics, leak, given, outputs):
    """The stages, each for all steps at once, since all states are known."""
    state = torch.cat(
        [given.initial_state[:, :, None], outputs[:, :, :-1]], dim=2
    )
    if given.resets.numel():
        state = state.masked_fill(given.resets[..., None] != 0, 0.0)
    drive, matrix = _drive(given), _matrix(given)
    units = state.shape[-1]
    linear = matrix.shape[-1] > units
    step_size = given.step_size[..., None] if dynamics.solver else 1.0
    shifts, _ = METHODS[dynamics.solver or "euler"]
    stages = []
    for shift in shifts:
        start = state
        if shift:
            start = state + shift * step_size * stages[-1].slope
        moved = in_full_precision(_multiply, start, matrix)
        product = moved[..., -units:]
        slope, inner = _activated(
            dynamics.activation, leak, product + drive[..., :units]
        )
        by_drive = inner
        outer = torch.ones_like(slope)
        if linear:
            slope = slope + moved[..., :units]
        if dynamics.gated:
            outer = torch.sigmoid(product + drive[..., units:])
            by_gate = slope * outer * (1 - outer)
            by_drive = torch.cat([outer * inner, by_gate], -1)
            inner = outer * inner + by_gate
            slope = outer * slope
        if linear:
            inner = torch.cat([outer, inner], -1)
        stages.append(
            _Stage(start, slope, step_size * inner, step_size * by_drive)
        )
    return stages


def _gradients(dynamics, given, stages, d_slopes):
    """Cotangents of all operands but the initial state."""
    d_drive, d_matrix, d_step_size = 0.0, 0.0, 0.0
    for stage, d_slope in zip(stages, d_slopes.unbind(2)):
        d_products = _repeated(d_slope, stage.factors) * stage.factors
        d_matrix = d_matrix + in_full_precision(
            _summed_product, stage.start, d_products
        )
        d_drive = d_drive + _repeated(d_slope, stage.drive) * stage.drive
        d_step_size = d_step_size + (d_slope * stage.slope).sum(-1)
    d_recurrent, d_expansion = d_matrix, torch.zeros_like(given.expansion)
    if given.expansion.shape[1]:
        d_recurrent = -in_full_precision(matmul, d_matrix, given.expansion.mT)
        d_expansion = -in_full_precision(
            matmul, given.recurrent_kernel.mT, d_matrix
        )
    if not dynamics.trained_steps:
        d_step_size = torch.zeros_like(given.step_size)
    elif given.step_size.shape[1:] == (1, 1):
        d_step_size = d_step_size.sum((1, 2))
    return (
        _multiply(d_drive, given.input_kernel.mT),
        _summed_product(given.inputs, d_drive),
        d_drive.sum((1, 2)),
        d_recurrent,
        d_expansion,
        d_step_size,
        torch.zeros_like(given.modulus_bias),
        torch.zeros_like(given.resets),
    )


def _activated(activation, leak, argument):
    """An activation's value and derivative.

    In PyTorch's functions, because Keras' would move tensors to its device.
    """
    if activation is keras.activations.linear:
        return argument, torch.ones_like(argument)
    if activation is keras.activations.tanh:
        value = torch.tanh(argument)
        return value, 1 - value * value
    if activation is keras.activations.sigmoid:
        value = torch.sigmoid(argument)
        return value, value * (1 - value)
    if activation is keras.activations.gelu:
        below = torch.special.ndtr(argument)
        bell = torch.exp(-0.5 * argument * argument) / math.sqrt(2 * math.pi)
        return argument * below, below + argument * bell
    if activation is keras.activations.relu:
        value = torch.relu(argument)
    elif getattr(activation, "func", None) is leaky_relu:
        value = torch.where(argument > 0, argument, leak * argument)
    else:
        raise NotImplementedError(
            "The CUDA core has no gradient of this activation. Received: "
            f"activation={activation}"
        )
    return value, torch.where(value > 0, torch.ones_like(value), leak)


def _without_autocast(operands):
    """A scope without autocast, which PyTorch leaves on inside an operator."""
    return torch.autocast(operands[0].device.type, enabled=False)


def _with_systems(operands):
    """The operands with exactly one leading axis, that of systems."""
    groups = math.prod(operands[0].shape[:-3])
    axes = Operands(3, 2, 1, 2, 2, 2, 1, 2, 2)
    return Operands(
        *(
            part.reshape(groups, *part.shape[part.ndim - count :])
            for part, count in zip(operands, axes)
        )
    )


def _shape(given):
    """Groups, batch, time, units."""
    return *given.inputs.shape[:3], given.initial_state.shape[-1]


def _drive(given):
    product = _multiply(given.inputs, given.input_kernel)
    return product + given.bias[:, None, None]


def _matrix(given):
    """The matrix that multiplies a state's row, computed from its factors."""
    if not given.expansion.shape[1]:
        return given.recurrent_kernel
    matrix = -in_full_precision(matmul, given.recurrent_kernel, given.expansion)
    matrix.diagonal(dim1=1, dim2=2).add_(1)
    return matrix


def _multiply(sequences, matrices):
    """(groups, batch, time, n) by (groups, n, m)."""
    return (sequences.flatten(1, 2) @ matrices).unflatten(
        1, sequences.shape[1:3]
    )


def _summed_product(left, right):
    """The sum of the outer products of all steps."""
    return left.flatten(1, 2).mT @ right.flatten(1, 2)


def _repeated(d_slope, factors):
    """`d_slope` repeated for each part of the factors."""
    parts = factors.shape[-1] // d_slope.shape[-1]
    return d_slope.repeat(1, 1, 1, parts)
