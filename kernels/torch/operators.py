"""The C++ and CUDA cores as custom operators of PyTorch, without gradients.

Importing this module builds and loads the library for the CPU. Every operator
takes quantities as lists of one tensor (real) or two (complex). All tensors may
have further leading axes: `torch.vmap` adds them, and the cores treat them as
independent systems.
"""

import ctypes
import inspect
import math
from functools import wraps
from pathlib import Path
from typing import List  # noqa: UP035

import torch
from torch import Tensor

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native import varying_block
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_shapes import carried_shapes
from keras_linrec.kernels.native.call_shapes import checkpoint_shape
from keras_linrec.kernels.native.call_shapes import convolution_shapes
from keras_linrec.kernels.native.call_shapes import move_shapes
from keras_linrec.kernels.native.call_shapes import operand_shapes
from keras_linrec.kernels.native.call_shapes import parts_of
from keras_linrec.kernels.native.call_shapes import projected_shapes
from keras_linrec.kernels.native.call_shapes import require_shapes
from keras_linrec.kernels.native.call_shapes import response_shapes
from keras_linrec.kernels.native.call_shapes import scan_shapes
from keras_linrec.kernels.native.call_shapes import varying_checkpoint_shape
from keras_linrec.kernels.native.call_shapes import varying_shapes
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.tensors import empty_like
from keras_linrec.kernels.torch.tensors import flatten
from keras_linrec.kernels.torch.tensors import number_flag
from keras_linrec.kernels.torch.tensors import split_axes

# PyTorch 2.6 reads no `list[...]` in the signature of an operator.
Tensors = List[Tensor]  # noqa: UP006
Flags = List[bool]  # noqa: UP006


def lend_threads():
    """Makes the core run on PyTorch's threads, if these are OpenMP's.

    They spin while they wait, and would take the processors from the core's
    own threads: RotRNN's training step at (32, 784, 128) takes 57 ms with
    separate threads and 44 with shared ones.
    """
    library = build.core()
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("libgomp*.so*"):
        runtime = ctypes.CDLL(str(path))
        library.keras_linrec_use_openmp(
            runtime.GOMP_parallel,
            runtime.omp_get_thread_num,
            runtime.omp_get_max_threads,
        )
        return


lend_threads()


def _operator(describe, settings=1, devices="cpu"):
    """Makes an operator that runs the core's function of the same name.

    It decorates a function that takes the operator's arguments and returns its
    results, uninitialised. The core reads as many of the tensors as it needs,
    in their order, and fills the results.

    Args:
        describe: takes the operator's arguments and returns the core's flags,
            without the number type, its sizes after the number of groups, the
            leading axes that all tensors have, and the shapes that each
            argument should have after these axes: a list of lists.
        settings: the number of leading arguments that are not tensors.
        devices: the types of the devices that it runs on, where the CUDA core
            has the same function as the C++ core. Defaults to `"cpu"`.
    """

    def make(results_of):
        name = results_of.__name__
        names = list(inspect.signature(results_of).parameters)[settings:]

        def check(*given):
            flags, sizes, axes, shapes = describe(*given)
            function = f"torch.ops.keras_linrec.{name}"
            require_shapes(function, names, given[settings:], shapes, axes)
            return flags, (math.prod(axes), *sizes)

        @wraps(results_of)
        def run(*given):
            flags, sizes = check(*given)
            arguments = flatten(given[settings:])
            results = results_of(*given)
            call = _CALLS[arguments[0].device.type]
            call(name, flags, sizes, arguments, flatten(results))
            return results

        operator = torch.library.custom_op(
            f"keras_linrec::{name}", run, mutates_args=(), device_types=devices
        )
        operator.register_fake(results_of)
        operator.check = check
        return operator

    return make


def _call_core(name, flags, sizes, arguments, results):
    arguments = [tensor.contiguous() for tensor in arguments]
    # OpenMP reports its default to a thread until PyTorch has set the number
    # of threads there, which this call does.
    torch.get_num_threads()
    core.call(
        f"keras_linrec_{name}",
        flags | number_flag(name, arguments),
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
    )


_CALLS = {"cpu": _call_core, "cuda": cuda.call}


# The scan.


def _describe_scan(flags, decay, sequences, *_):
    axes, sizes = split_axes(sequences[0], 3)
    return flags, sizes, axes, scan_shapes(flags, *sizes)


@_operator(_describe_scan, devices=("cpu", "cuda"))
def scan(
    flags: int,
    decay: Tensors,
    inputs: Tensors,
    resets: Tensor,
    initial_state: Tensors,
) -> Tensors:
    """Outputs and final state."""
    return empty_like([*inputs, *initial_state])


@_operator(_describe_scan, devices=("cpu", "cuda"))
def scan_backward(
    flags: int,
    decay: Tensors,
    outputs: Tensors,
    resets: Tensor,
    initial_state: Tensors,
    d_outputs: Tensors,
    d_final_state: Tensors,
) -> Tensors:
    """Cotangents of the arguments of `scan` but the resets."""
    return empty_like([*decay, *outputs, *initial_state])


# The projected scan.


def _describe_projected(flags, decay, inputs, input_kernel, output_kernel, *_):
    axes, (batch, time, features) = split_axes(inputs, 3)
    channels, units = decay[0].shape[-1], output_kernel[0].shape[-1]
    sizes = batch, time, features, channels, units
    block = block_length(parts_of(flags) * channels)
    shapes = projected_shapes(flags, *sizes)
    return flags, (*sizes, block), axes, shapes


def _describe_projected_backward(flags, *arguments):
    flags, sizes, axes, shapes = _describe_projected(flags, *arguments)
    batch, time, _, channels, units, block = sizes
    checkpoints = checkpoint_shape(flags, batch, time, channels, block)
    *operands, state = shapes
    shapes = *operands, [checkpoints], [(batch, time, units)], state, state
    return flags, sizes, axes, shapes


@_operator(_describe_projected)
def projected_scan(
    flags: int,
    decay: Tensors,
    inputs: Tensor,
    input_kernel: Tensors,
    output_kernel: Tensors,
    resets: Tensor,
    initial_state: Tensors,
) -> Tensors:
    """Outputs, final state, and the checkpoints that the gradient needs."""
    *axes, batch, time, _ = inputs.shape
    channels, units = output_kernel[0].shape[-2:]
    block = block_length(len(decay) * channels)
    checkpoints = checkpoint_shape(flags, batch, time, channels, block)
    return [
        inputs.new_empty((*axes, batch, time, units)),
        *empty_like(initial_state),
        # Zeros, because the core does not write all of them, and
        # `torch.library.opcheck` compares results.
        inputs.new_zeros((*axes, *checkpoints)),
    ]


@_operator(_describe_projected_backward)
def projected_scan_backward(
    flags: int,
    decay: Tensors,
    inputs: Tensor,
    input_kernel: Tensors,
    output_kernel: Tensors,
    resets: Tensor,
    checkpoints: Tensor,
    d_outputs: Tensor,
    d_final_state: Tensors,
    initial_state: Tensors,
) -> Tensors:
    """Cotangents of the arguments of `projected_scan` but the resets.

    The core reads the initial state from the checkpoints. It is an argument for
    the sake of the gradient's own gradient.
    """
    return empty_like(
        [*decay, inputs, *input_kernel, *output_kernel, *initial_state]
    )


# The impulse response.


def _describe_response(time, alpha, arguments, *_):
    axes, (features, channels, state) = split_axes(arguments[-1], 3)
    shapes = response_shapes(features, channels, state)
    # The last size lets the core choose the length of blocks.
    sizes = features, channels, state, time, bits_of(alpha), 0
    return 0, sizes, axes, (shapes, [(features, channels, time)])


@_operator(_describe_response, settings=2, devices=("cpu", "cuda"))
def impulse_response(time: int, alpha: float, arguments: Tensors) -> Tensors:
    """The response."""
    output_matrix = arguments[-1]
    return [output_matrix.new_empty((*output_matrix.shape[:-1], time))]


def _describe_response_backward(wanted, *given):
    return _describe_response(*given)


@_operator(_describe_response_backward, settings=3, devices=("cpu", "cuda"))
def impulse_response_backward(
    wanted: Flags,
    time: int,
    alpha: float,
    arguments: Tensors,
    d_response: Tensor,
) -> Tensors:
    """Cotangents of the arguments, empty where they are not wanted."""
    axes = arguments[-1].shape[:-3]
    return [
        argument.new_empty(argument.shape if one else (*axes, 0))
        for one, argument in zip(wanted, arguments)
    ]


# The response to steps that differ in length.


def _describe_varying(alpha, arguments):
    axes, (batch, time, features) = split_axes(arguments[-2], 3)
    channels, state = arguments[6].shape[-2:]
    sizes = batch, time, features, channels, state
    block = varying_block(time, state)
    shapes = [varying_shapes(*sizes)]
    return 0, (*sizes, block, bits_of(alpha)), axes, shapes


def _describe_varying_backward(alpha, arguments, *_):
    flags, sizes, axes, shapes = _describe_varying(alpha, arguments)
    batch, time, features, channels, state, block, _ = sizes
    shapes += [
        [varying_checkpoint_shape(batch, time, features, state, block)],
        [(batch, time, features, channels)],
        [(batch, features, state)],
    ]
    return flags, sizes, axes, shapes


@_operator(_describe_varying)
def varying_response(alpha: float, arguments: Tensors) -> Tensors:
    """Outputs, final state, and the checkpoints that the gradient needs."""
    inputs, initial_state = arguments[-2:]
    *axes, batch, time, features = inputs.shape
    channels, state = arguments[6].shape[-2:]
    checkpoints = varying_checkpoint_shape(
        batch, time, features, state, varying_block(time, state)
    )
    return [
        inputs.new_empty((*inputs.shape, channels)),
        *empty_like([initial_state]),
        # Zeros, because the core does not write all of them, and
        # `torch.library.opcheck` compares results.
        inputs.new_zeros((*axes, *checkpoints)),
    ]


@_operator(_describe_varying_backward)
def varying_response_backward(
    alpha: float,
    arguments: Tensors,
    checkpoints: Tensor,
    d_outputs: Tensor,
    d_final_state: Tensor,
) -> Tensors:
    """Cotangents of the arguments of `varying_response` but the resets."""
    resets = 8
    return empty_like([*arguments[:resets], *arguments[resets + 1 :]])


# The response with states before and after it.


def _describe_carried(alpha, arguments, *_):
    axes, (batch, time, features) = split_axes(arguments[-2], 3)
    channels, state = arguments[6].shape[-2:]
    sizes = batch, time, features, channels, state
    shapes = (
        carried_shapes(*sizes),
        [(batch, time, features, channels)],
        [(batch, features, state)],
    )
    return 0, (*sizes, bits_of(alpha)), axes, shapes


@_operator(_describe_carried)
def carried_response(alpha: float, arguments: Tensors) -> Tensors:
    """Outputs and final state."""
    inputs, initial_state = arguments[-2:]
    channels = arguments[6].shape[-2]
    return [
        inputs.new_empty((*inputs.shape, channels)),
        *empty_like([initial_state]),
    ]


@_operator(_describe_carried)
def carried_response_backward(
    alpha: float,
    arguments: Tensors,
    d_outputs: Tensor,
    d_final_state: Tensor,
) -> Tensors:
    """Cotangents of the arguments but the lengths and resets."""
    lengths = 7
    return empty_like([*arguments[:lengths], *arguments[lengths + 2 :]])


# The causal convolution.


def _describe_convolution(flags, leak, inputs, response, *_):
    axes, sizes = split_axes(inputs, 3)
    sizes = *sizes, *response.shape[-2:]
    shapes = convolution_shapes(*sizes)
    return flags, (*sizes, bits_of(leak)), axes, shapes


@_operator(_describe_convolution, settings=2)
def causal_convolution(
    flags: int, leak: float, inputs: Tensor, response: Tensor
) -> Tensors:
    """The outputs."""
    return [inputs.new_empty((*inputs.shape, response.shape[-2]))]


def _describe_convolution_backward(wanted, *given):
    return _describe_convolution(*given)


@_operator(_describe_convolution_backward, settings=3)
def causal_convolution_backward(
    wanted: Flags,
    flags: int,
    leak: float,
    inputs: Tensor,
    response: Tensor,
    d_outputs: Tensor,
) -> Tensors:
    """Cotangents of inputs and response, empty where they are not wanted."""
    return [
        argument.new_empty(argument.shape if one else (*argument.shape[:-3], 0))
        for one, argument in zip(wanted, (inputs, response))
    ]


# Moves of steps.


def _describe_move(flags, sequences, mask):
    axes, sizes = split_axes(sequences, 3)
    return flags, sizes, axes, move_shapes(*sizes)


@_operator(_describe_move)
def move_steps(flags: int, sequences: Tensor, mask: Tensor) -> Tensors:
    """The moved steps."""
    return empty_like([sequences])


# The nonlinear scan.


def _describe_operands(flags, operands):
    """Leading axes, sizes as far as operands have them, and their shapes."""
    operands = Operands(*operands)
    axes, (batch, time, features) = split_axes(operands.inputs, 3)
    _, (rank, units) = split_axes(operands.expansion, 2)
    shapes = operand_shapes(flags, batch, time, features, units, rank)
    return axes, (batch, time, features, units, rank), shapes


def _describe_nonlinear(flags, leak, keep, operands):
    axes, sizes, shapes = _describe_operands(flags, operands)
    kept = sizes[1] if keep else 0
    return flags, (*sizes, kept, 0, bits_of(leak)), axes, [shapes]


@_operator(_describe_nonlinear, settings=3)
def nonlinear_scan(
    flags: int, leak: float, keep: bool, operands: Tensors
) -> Tensors:
    """States of all steps, or of none if not `keep`, and the last one."""
    *axes, time, _ = operands[0].shape
    initial_state = operands[-1]
    kept = time if keep else 0
    return [
        initial_state.new_empty((*axes, kept, initial_state.shape[-1])),
        *empty_like([initial_state]),
    ]


@nonlinear_scan.register_kernel("cuda")
def nonlinear_scan_on_cuda(*given):
    nonlinear_scan.check(*given)
    return cuda.nonlinear_scan(*given)


def _describe_nonlinear_backward(flags, leak, operands, outputs, d_outputs, _):
    axes, sizes, shapes = _describe_operands(flags, operands)
    batch, time, _, units, _ = sizes
    _, (d_kept, _) = split_axes(d_outputs, 2)
    sizes = *sizes, time, d_kept, bits_of(leak)
    outputs = batch, time, units
    d_outputs = batch, d_kept and time, units
    shapes = [shapes, [outputs], [d_outputs], [(batch, units)]]
    return flags, sizes, axes, shapes


@_operator(_describe_nonlinear_backward, settings=2)
def nonlinear_scan_backward(
    flags: int,
    leak: float,
    operands: Tensors,
    outputs: Tensor,
    d_outputs: Tensor,
    d_final_state: Tensor,
) -> Tensors:
    """Cotangents of the operands; a `d_outputs` without steps means zeros."""
    return empty_like(operands)


@nonlinear_scan_backward.register_kernel("cuda")
def nonlinear_scan_backward_on_cuda(*given):
    nonlinear_scan_backward.check(*given)
    return cuda.nonlinear_scan_backward(*given)
