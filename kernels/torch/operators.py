"""The cores as custom operators of PyTorch, without gradients.

Importing this module builds and loads the library for the CPU. Every operator
takes quantities as lists of one tensor (real) or two (complex), and leading
axes before those it names: `torch.vmap` adds them, and the cores take them as
systems of their own.
"""

import ctypes
import warnings
from functools import cache
from functools import wraps
from pathlib import Path

import torch
from torch import Tensor

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.tensors import empty_like
from keras_linrec.kernels.torch.tensors import flatten
from keras_linrec.kernels.torch.tensors import leading
from keras_linrec.kernels.torch.tensors import number_flag


def _lend_threads():
    """Lets the core run on PyTorch's own threads, where these are OpenMP's.

    They wait by spinning, and would take the processors from the core's:
    RotRNN's training step at (32, 784, 128) takes 57 ms with threads of our
    own and 44 with these.
    """
    library = build.core()
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("libgomp*.so*"):
        runtime = ctypes.CDLL(str(path))
        library.keras_linrec_use_openmp(
            runtime.GOMP_parallel,
            runtime.omp_get_thread_num,
            runtime.omp_get_num_threads,
            runtime.omp_get_max_threads,
        )
        return


_lend_threads()


@cache
def cuda_library():
    """The library for GPUs, or None, with a warning, where it does not build.

    The CPU has its operators all the same.
    """
    try:
        return cuda.Library(build.library("cuda"))
    except (build.BuildError, OSError) as failure:
        warnings.warn(
            f"The kernel 'native' does not run on this GPU: {failure}. The "
            "kernel 'associative' takes its place there: results are the "
            "same, speed is not.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _operator(describe, settings=1):
    """Makes an operator, which the core runs, of what says its results.

    The function below it takes what the operator takes and returns its
    results, empty. The core's function of the same name reads the tensors in
    their order, as many as it needs, and fills the results.

    Args:
        describe: takes the same, and returns the core's flags, but for the
            number type, and its sizes.
        settings: how many arguments come first that are no tensors.
    """

    def make(results_of):
        name = results_of.__name__

        @wraps(results_of)
        def run(*given):
            flags, sizes = describe(*given)
            arguments = flatten(given[settings:])
            results = results_of(*given)
            _call_core(name, flags, sizes, arguments, results)
            return results

        operator = torch.library.custom_op(
            f"keras_linrec::{name}", run, mutates_args=(), device_types="cpu"
        )
        operator.register_fake(results_of)
        return operator

    return make


def _call_core(name, flags, sizes, arguments, results):
    arguments = [tensor.contiguous() for tensor in arguments]
    # A thread that never asked is told OpenMP's default, not what was set.
    torch.get_num_threads()
    core.call(
        f"keras_linrec_{name}",
        flags | number_flag(name, arguments),
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
    )


# The scan.


def _describe_scan(flags, decay, sequences, *_):
    return flags, (leading(sequences[0], 3), *sequences[0].shape[-3:])


@_operator(_describe_scan)
def scan(
    flags: int,
    decay: list[Tensor],
    inputs: list[Tensor],
    initial_state: list[Tensor],
) -> list[Tensor]:
    """Outputs and final state."""
    return empty_like([*inputs, *initial_state])


@scan.register_kernel("cuda")
def scan_on_cuda(flags, *arguments):
    results = cuda.scan(
        cuda_library(), *arguments, reverse=bool(flags & REVERSE)
    )
    return flatten(results)


@_operator(_describe_scan)
def scan_backward(
    flags: int,
    decay: list[Tensor],
    outputs: list[Tensor],
    initial_state: list[Tensor],
    d_outputs: list[Tensor],
    d_final_state: list[Tensor],
) -> list[Tensor]:
    """Cotangents of what `scan` takes."""
    return empty_like([*decay, *outputs, *initial_state])


@scan_backward.register_kernel("cuda")
def scan_backward_on_cuda(flags, *arguments):
    results = cuda.scan_backward(
        cuda_library(), *arguments, reverse=bool(flags & REVERSE)
    )
    return flatten(results)


# The projected scan.


def _describe_projected(flags, decay, inputs, input_kernel, output_kernel, *_):
    channels, units = output_kernel[0].shape[-2:]
    block = block_length(len(decay) * channels)
    sizes = leading(inputs, 3), *inputs.shape[-3:], channels, units, block
    return flags, sizes


@_operator(_describe_projected)
def projected_scan(
    flags: int,
    decay: list[Tensor],
    inputs: Tensor,
    input_kernel: list[Tensor],
    output_kernel: list[Tensor],
    initial_state: list[Tensor],
) -> list[Tensor]:
    """Outputs, final state, and the checkpoints that the gradient needs."""
    *axes, time, _ = inputs.shape
    parts, (channels, units) = len(decay), output_kernel[0].shape[-2:]
    checkpoints = checkpoint_count(time, block_length(parts * channels))
    return [
        inputs.new_empty((*axes, time, units)),
        *empty_like(initial_state),
        # Zeros, since not all of them are written, and results are compared.
        inputs.new_zeros((*axes, checkpoints, parts, channels)),
    ]


@_operator(_describe_projected)
def projected_scan_backward(
    flags: int,
    decay: list[Tensor],
    inputs: Tensor,
    input_kernel: list[Tensor],
    output_kernel: list[Tensor],
    checkpoints: Tensor,
    d_outputs: Tensor,
    d_final_state: list[Tensor],
    initial_state: list[Tensor],
) -> list[Tensor]:
    """Cotangents of what `projected_scan` takes.

    The core has the initial state in the checkpoints, and does not read it.
    """
    return empty_like(
        [*decay, inputs, *input_kernel, *output_kernel, *initial_state]
    )


# The impulse response.


def _describe_response(time, alpha, arguments, *_):
    output_matrix = arguments[-1]
    groups, shape = leading(output_matrix, 3), output_matrix.shape[-3:]
    # Blocks of a length that the core chooses.
    return 0, (groups, *shape, time, bits_of(alpha), 0)


@_operator(_describe_response, settings=2)
def impulse_response(
    time: int, alpha: float, arguments: list[Tensor]
) -> list[Tensor]:
    """The response."""
    output_matrix = arguments[-1]
    return [output_matrix.new_empty((*output_matrix.shape[:-1], time))]


@_operator(_describe_response, settings=2)
def impulse_response_backward(
    time: int, alpha: float, arguments: list[Tensor], d_response: Tensor
) -> list[Tensor]:
    """Cotangents of what `impulse_response` takes."""
    return empty_like(arguments)


# The causal convolution.


def _describe_convolution(inputs, response, *_):
    return 0, (leading(inputs, 3), *inputs.shape[-3:], *response.shape[-2:])


@_operator(_describe_convolution, settings=0)
def causal_convolution(inputs: Tensor, response: Tensor) -> list[Tensor]:
    """The outputs."""
    return [inputs.new_empty((*inputs.shape, response.shape[-2]))]


def _describe_convolution_backward(wanted, *arguments):
    return _describe_convolution(*arguments)


@_operator(_describe_convolution_backward)
def causal_convolution_backward(
    wanted: list[bool], inputs: Tensor, response: Tensor, d_outputs: Tensor
) -> list[Tensor]:
    """Cotangents of inputs and response, empty where they are not wanted."""
    return [
        argument.new_empty(
            argument.shape if one else (*argument.shape[:-3], 0)
        )
        for one, argument in zip(wanted, (inputs, response))
    ]


# The nonlinear scan.


def _nonlinear_sizes(operands, leak, kept, d_kept):
    inputs, expansion, initial_state = operands[0], operands[4], operands[7]
    groups, shape = leading(inputs, 3), inputs.shape[-3:]
    units, rank = initial_state.shape[-1], expansion.shape[-2]
    return groups, *shape, units, rank, kept, d_kept, bits_of(leak)


def _describe_nonlinear(flags, leak, keep, operands):
    kept = operands[0].shape[-2] if keep else 0
    return flags, _nonlinear_sizes(operands, leak, kept, 0)


@_operator(_describe_nonlinear, settings=3)
def nonlinear_scan(
    flags: int, leak: float, keep: bool, operands: list[Tensor]
) -> list[Tensor]:
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
    return cuda.nonlinear_scan(cuda_library(), *given)


def _describe_nonlinear_backward(flags, leak, operands, outputs, d_outputs, _):
    kept, d_kept = outputs.shape[-2], d_outputs.shape[-2]
    return flags, _nonlinear_sizes(operands, leak, kept, d_kept)


@_operator(_describe_nonlinear_backward, settings=2)
def nonlinear_scan_backward(
    flags: int,
    leak: float,
    operands: list[Tensor],
    outputs: Tensor,
    d_outputs: Tensor,
    d_final_state: Tensor,
) -> list[Tensor]:
    """Cotangents of the operands; `d_outputs` may be of no steps: zero."""
    return empty_like(operands)


@nonlinear_scan_backward.register_kernel("cuda")
def nonlinear_scan_backward_on_cuda(*given):
    return cuda.nonlinear_scan_backward(cuda_library(), *given)
