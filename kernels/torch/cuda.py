"""Linear and nonlinear scans on NVIDIA GPUs, by our CUDA kernels.

Plain functions without gradients: `operators.py` makes operators of them. The
library is built from `native/source/cuda.cu`. A C++ compiler can build it for
the CPU, which is how it is tested without a GPU.

Quantities are sequences of one tensor (real) or two (complex). All may have
further leading axes, which are independent systems.
"""

import ctypes
import math
from contextlib import nullcontext
from typing import NamedTuple

import keras
import torch

from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import PER_STEP
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.nonlinear_recurrence import METHODS
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.torch.tensors import empty_like
from keras_linrec.kernels.torch.tensors import flatten
from keras_linrec.kernels.torch.tensors import number_flag

# The threads that a large GPU runs concurrently, within a factor of two.
_THREADS = 2**17


def nvcc_flags():
    """The flags to compile `cuda.cu` with.

    They ask for machine code for the oldest GPU that nvcc 13 supports and for
    those common in data centers; it also runs on others of the same generation.
    The drivers of newer GPUs compile the PTX of 9.0; the newest PTX would shut
    out some of them.
    """
    return (
        "-O3",
        "-std=c++17",
        "--shared",
        "-Xcompiler=-fPIC",
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    )


class Library:
    """A library compiled from `cuda.cu`."""

    FUNCTIONS = (
        "scan",
        "scan_backward",
        "nonlinear_scan",
        "nonlinear_scan_backward",
    )

    def __init__(self, path):
        library = ctypes.CDLL(str(path))
        arrays = ctypes.POINTER(ctypes.c_void_p)
        sizes = ctypes.POINTER(ctypes.c_int64)
        for name in self.FUNCTIONS:
            function = getattr(library, f"keras_linrec_cuda_{name}")
            function.argtypes = (
                ctypes.c_int,
                sizes,
                arrays,
                arrays,
                ctypes.c_void_p,
            )
            setattr(self, name, function)
        self._error = library.keras_linrec_cuda_error
        self._error.restype = ctypes.c_char_p

    def call(self, name, flags, sizes, arguments, results):
        """Queue a call of one of the functions on the current stream.

        `arguments` and `results` are tensors and quantities in the order of
        the C function; `flags` are without the number type. The call does not
        wait for the result.
        """
        arguments = [part.contiguous() for part in flatten(arguments)]
        results = flatten(results)
        flags |= number_flag(name, arguments)
        device = _device(name, arguments)
        gpu = device.type == "cuda"
        with torch.cuda.device(device) if gpu else nullcontext():
            stream = torch.cuda.current_stream().cuda_stream if gpu else None
            error = getattr(self, name)(
                flags,
                (ctypes.c_int64 * len(sizes))(*sizes),
                _pointers(arguments),
                _pointers(results),
                stream,
            )
        if error:
            raise RuntimeError(
                f"the scan's CUDA kernel did not start: "
                f"{self._error(error).decode()} (error {error})"
            )


def _device(name, tensors):
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(
            f"`torch.ops.keras_linrec.{name}` expects tensors on one device. "
            f"Received: devices={sorted(map(str, devices))}"
        )
    return devices.pop()


def scan(library, decay, inputs, initial_state, reverse=False):
    """`(outputs, final_state)` of h_t = decay_t * h_{t-1} + inputs_t."""
    sizes = _sizes(inputs)
    outputs, final_state = empty_like(inputs), empty_like(initial_state)
    library.call(
        "scan",
        _flags(decay, inputs, reverse),
        sizes,
        (decay, inputs, initial_state),
        (outputs, final_state, *_scratch(inputs, sizes)),
    )
    return outputs, final_state


def scan_backward(
    library,
    decay,
    outputs,
    initial_state,
    d_outputs,
    d_final_state,
    reverse=False,
):
    """Cotangents of `(decay, inputs, initial_state)`, each a list."""
    sizes = _sizes(outputs)
    per_step = decay[0].ndim == outputs[0].ndim
    d_decay = empty_like(decay) if per_step else _of_chunks(outputs, sizes)
    d_inputs, d_initial_state = empty_like(outputs), empty_like(initial_state)
    library.call(
        "scan_backward",
        _flags(decay, outputs, reverse),
        sizes,
        (decay, outputs, initial_state, d_outputs, d_final_state),
        (d_decay, d_inputs, d_initial_state, *_scratch(outputs, sizes)),
    )
    if not per_step:
        # Each thread returns its own sum. Adding them in a fixed order makes
        # the result reproducible.
        d_decay = [part.sum((1, 2)).reshape(decay[0].shape) for part in d_decay]
    return d_decay, d_inputs, d_initial_state


def _chunks(states, time):
    """The number of chunks of time that lets all threads of the GPU run.

    Two passes take time / chunks steps each, and the pass between them takes
    one step per chunk: beyond sqrt(2 * time) chunks, more make it slower.
    """
    wanted = min(_THREADS // max(states, 1), math.isqrt(2 * time))
    steps = -(-time // max(wanted, 1))
    return -(-time // steps)


def _sizes(sequences):
    """Groups, batch, time, channels, chunks."""
    *leading, batch, time, channels = sequences[0].shape
    groups = math.prod(leading)
    chunks = _chunks(groups * batch * channels, time)
    return groups, batch, time, channels, chunks


def _flags(decay, sequences, reverse):
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (decay[0].ndim == sequences[0].ndim)
        + REVERSE * bool(reverse)
    )


def _of_chunks(sequences, sizes):
    """A quantity with one number for each row, chunk and channel."""
    groups, batch, _, channels, chunks = sizes
    shape = (groups, batch, chunks, channels)
    return [part.new_empty(shape) for part in sequences]


def _scratch(sequences, sizes):
    """The buffers between the passes, if there is more than one."""
    if sizes[-1] == 1:
        return ()
    return _of_chunks(sequences, sizes), _of_chunks(sequences, sizes)


def _pointers(tensors):
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


# The nonlinear scan. Its operands have a leading axis of systems. The kernels
# compute what is sequential; large products do the rest for all steps at once.


def nonlinear_scan(library, flags, leak, keep, operands):
    """States of all steps, or of none if not `keep`, and the last one.

    `operands` are those of `keras_linrec.kernels.nonlinear_recurrence`, in a
    list and with any leading axes; `flags` and `leak` are those of
    `call_encoding.nonlinear_flags`.
    """
    with _without_autocast(operands):
        given = _with_systems(operands)
        groups, batch, time, units = _shape(given)
        outputs = given.inputs.new_empty(
            (groups, batch, time if keep else 0, units)
        )
        final_state = given.inputs.new_empty((groups, batch, units))
        drive, matrix = _drive(given), _matrix(given)
        library.call(
            "nonlinear_scan",
            flags,
            (*_shape(given), int(keep), bits_of(leak)),
            (drive, matrix, given.step_size, given.initial_state),
            (outputs, final_state),
        )
        leading = operands[0].shape[:-3]
        return [
            part.reshape(*leading, *part.shape[1:])
            for part in (outputs, final_state)
        ]


def nonlinear_scan_backward(
    library, flags, leak, operands, outputs, d_outputs, d_final_state
):
    """Cotangents of the operands; a `d_outputs` without steps means zeros."""
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
        dynamics = dynamics_of(flags, leak)
        stages = _stages(dynamics, leak, given, outputs)
        factors = torch.stack([stage.factors for stage in stages])
        d_slopes = outputs.new_empty((len(stages), *outputs.shape))
        d_initial_state = outputs.new_empty(given.initial_state.shape)
        kept = d_outputs.shape[2] > 0
        library.call(
            "nonlinear_scan_backward",
            flags,
            (*_shape(given), int(kept), bits_of(leak)),
            (factors, _matrix(given).mT, d_outputs, d_final_state),
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
        moved = _multiply(start, matrix)
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
    for stage, d_slope in zip(stages, d_slopes):
        d_products = _repeated(d_slope, stage.factors) * stage.factors
        d_matrix = d_matrix + _summed_product(stage.start, d_products)
        d_drive = d_drive + _repeated(d_slope, stage.drive) * stage.drive
        d_step_size = d_step_size + (d_slope * stage.slope).sum(-1)
    d_recurrent, d_expansion = d_matrix, torch.zeros_like(given.expansion)
    if given.expansion.shape[1]:
        d_recurrent = -d_matrix @ given.expansion.mT
        d_expansion = -given.recurrent_kernel.mT @ d_matrix
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
    if activation is keras.activations.relu:
        value = torch.relu(argument)
    else:
        value = torch.where(argument > 0, argument, leak * argument)
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
    matrix = -given.recurrent_kernel @ given.expansion
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
