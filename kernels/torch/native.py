"""The core on PyTorch, as custom operators.

Importing this module builds and loads the library. Every operator takes
quantities as lists of one tensor (real) or two (complex), and leading axes
before those it names: `torch.vmap` adds them, and the core takes them as
systems of their own.
"""

import ctypes
import math
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from keras_linrec.kernels import impulse_response as plain
from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native import few_steps
from keras_linrec.kernels.native.call_encoding import FLOAT64
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.loop import loop
from keras_linrec.kernels.torch.scan import associative


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
def _cuda_library():
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


def scan(decay, inputs, initial_state, reverse=False):
    """Outputs and final state, tuples both."""
    decay, inputs, initial_state = _alike(decay, inputs, initial_state)
    if not _has_operators(inputs[0]):
        portable = projection.with_final_state(associative)
        return portable(decay, inputs, initial_state, reverse)
    flags = flags_of(decay, reverse)
    results = _scan(flags, list(decay), list(inputs), list(initial_state))
    return _groups(results, (len(decay), len(decay)))


def projected_scan(
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
):
    """Outputs and final state, of which the latter is a tuple."""
    short = not torch.compiler.is_compiling() and few_steps(inputs.shape[1])
    if short or inputs.device.type == "cuda" or not _has_operators(inputs):
        return projection.projected_scan(
            scan,
            *(decay, inputs, input_kernel, output_kernel),
            *(initial_state, reverse),
        )
    outputs, *final_state, _ = _projected_scan(
        flags_of(decay, reverse),
        list(decay),
        inputs,
        *(list(input_kernel), list(output_kernel), list(initial_state)),
    )
    return outputs, tuple(final_state)


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """What `keras_linrec.kernels.impulse_response` computes."""
    arguments = p, d, q, t, b, timescale, output_matrix
    ((p, d, q, t, b, timescale, output_matrix),) = _alike(arguments)
    arguments = p, d, q, t, b, timescale, output_matrix
    if p.device.type == "cuda" or not _has_operators(p):
        return plain.impulse_response(scan, *arguments, time, alpha)
    (response,) = _impulse_response(time, float(alpha), list(arguments))
    return response


def nonlinear_scan(dynamics, operands, keep_all=True):
    """What `Kernel.nonlinear_scan` of the registry computes."""
    (operands,) = _alike(operands)
    operands = nonlinear_recurrence.Operands(*operands)
    flags = nonlinear_flags(dynamics, operands)
    inputs = operands.inputs
    # PyTorch's compiler would unroll the plain loop.
    short = not torch.compiler.is_compiling() and few_steps(inputs.shape[1])
    taken = flags is not None and not short
    if inputs.device.type == "cuda":
        taken = taken and cuda.takes(dynamics, operands)
    if not taken or not _has_operators(inputs):
        return nonlinear_recurrence.with_last_state(loop, dynamics, operands)
    keep = keep_all or (
        torch.is_grad_enabled() and any(part.requires_grad for part in operands)
    )
    outputs, final_state = _nonlinear_scan(*flags, keep, list(operands))
    return outputs, final_state


def _alike(*quantities):
    """All in the first one's number type, which `torch.autocast` may change."""
    dtype = quantities[0][0].dtype
    return [tuple(p.to(dtype) for p in parts) for parts in quantities]


def _has_operators(tensor):
    """Whether this module's operators run on a tensor, here and now."""
    if tensor.device.type == "cuda":
        return _cuda_library() is not None and not _functional_gradient()
    # Nothing is computed on "meta": Keras traces shapes there.
    return tensor.device.type in ("cpu", "meta") and not _functional_gradient()


def _functional_gradient():
    """Whether `torch.func` is differentiating, which custom operators forbid.

    `torch.vmap` by itself is no obstacle.
    """
    if torch.compiler.is_compiling():
        return False
    if not torch._C._are_functorch_transforms_active():
        return False
    levels = torch._C._functorch.get_interpreter_stack()
    return any(
        level.key() != torch._C._functorch.TransformType.Vmap
        for level in levels
    )


def _groups(tensors, counts):
    """A flat sequence of tensors, cut into tuples of so many."""
    tensors = iter(tensors)
    return tuple(tuple(next(tensors) for _ in range(n)) for n in counts)


def _flatten(arguments):
    return [
        tensor
        for argument in arguments
        for tensor in ([argument] if isinstance(argument, Tensor) else argument)
    ]


def _empty_like(tensors):
    # Not `empty_like`, which would keep a transposed order.
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _leading(tensor, axes):
    return math.prod(tensor.shape[: tensor.ndim - axes])


def _call_core(name, flags, sizes, arguments, results):
    arguments = [tensor.contiguous() for tensor in _flatten(arguments)]
    dtypes = {tensor.dtype for tensor in arguments}
    if dtypes == {torch.float64}:
        flags |= FLOAT64
    elif dtypes != {torch.float32}:
        raise TypeError(
            f"`torch.ops.keras_linrec.{name}` takes tensors that are all "
            f"float32 or all float64. Received: {sorted(map(str, dtypes))}"
        )
    # A thread that never asked is told OpenMP's default, not what was set.
    torch.get_num_threads()
    core.call(
        f"keras_linrec_{name}",
        flags,
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
    )
    return results


# The scan.


@torch.library.custom_op(
    "keras_linrec::scan", mutates_args=(), device_types="cpu"
)
def _scan(
    flags: int,
    decay: list[Tensor],
    inputs: list[Tensor],
    initial_state: list[Tensor],
) -> list[Tensor]:
    arguments = decay, inputs, initial_state
    return _call_core(
        "scan",
        flags,
        (_leading(inputs[0], 3), *inputs[0].shape[-3:]),
        arguments,
        _empty_like([*inputs, *initial_state]),
    )


@_scan.register_fake
def _scan_shapes(flags, decay, inputs, initial_state):
    return _empty_like([*inputs, *initial_state])


@_scan.register_kernel("cuda")
def _scan_on_cuda(flags, decay, inputs, initial_state):
    outputs, final_state = cuda.scan(
        *(_cuda_library(), decay, inputs, initial_state),
        reverse=bool(flags & REVERSE),
    )
    return [*outputs, *final_state]


@torch.library.custom_op(
    "keras_linrec::scan_backward", mutates_args=(), device_types="cpu"
)
def _scan_backward(
    flags: int,
    decay: list[Tensor],
    outputs: list[Tensor],
    initial_state: list[Tensor],
    d_outputs: list[Tensor],
    d_final_state: list[Tensor],
) -> list[Tensor]:
    return _call_core(
        "scan_backward",
        flags,
        (_leading(outputs[0], 3), *outputs[0].shape[-3:]),
        (decay, outputs, initial_state, d_outputs, d_final_state),
        _empty_like([*decay, *outputs, *initial_state]),
    )


@_scan_backward.register_fake
def _scan_backward_shapes(
    flags, decay, outputs, initial_state, d_outputs, d_final_state
):
    return _empty_like([*decay, *outputs, *initial_state])


@_scan_backward.register_kernel("cuda")
def _scan_backward_on_cuda(
    flags, decay, outputs, initial_state, d_outputs, d_final_state
):
    gradients = cuda.scan_backward(
        _cuda_library(),
        *(decay, outputs, initial_state, d_outputs, d_final_state),
        reverse=bool(flags & REVERSE),
    )
    return _flatten(gradients)


# The projected scan.


def _projected_results(decay, inputs, output_kernel, initial_state):
    """Outputs, final state and checkpoints, empty."""
    *leading, time, _ = inputs.shape
    parts, (channels, units) = len(decay), output_kernel[0].shape[-2:]
    block = block_length(parts * channels)
    return [
        inputs.new_empty((*leading, time, units)),
        *_empty_like(initial_state),
        # Zeros, since not all of them are written, and results are compared.
        inputs.new_zeros(
            (*leading, checkpoint_count(time, block), parts, channels)
        ),
    ]


def _projected_sizes(decay, inputs, output_kernel):
    channels, units = output_kernel[0].shape[-2:]
    return (
        _leading(inputs, 3),
        *inputs.shape[-3:],
        *(channels, units, block_length(len(decay) * channels)),
    )


@torch.library.custom_op(
    "keras_linrec::projected_scan", mutates_args=(), device_types="cpu"
)
def _projected_scan(
    flags: int,
    decay: list[Tensor],
    inputs: Tensor,
    input_kernel: list[Tensor],
    output_kernel: list[Tensor],
    initial_state: list[Tensor],
) -> list[Tensor]:
    return _call_core(
        "projected_scan",
        flags,
        _projected_sizes(decay, inputs, output_kernel),
        (decay, inputs, input_kernel, output_kernel, initial_state),
        _projected_results(decay, inputs, output_kernel, initial_state),
    )


@_projected_scan.register_fake
def _projected_scan_shapes(
    flags, decay, inputs, input_kernel, output_kernel, initial_state
):
    return _projected_results(decay, inputs, output_kernel, initial_state)


@torch.library.custom_op(
    "keras_linrec::projected_scan_backward",
    mutates_args=(),
    device_types="cpu",
)
def _projected_scan_backward(
    flags: int,
    decay: list[Tensor],
    inputs: Tensor,
    input_kernel: list[Tensor],
    output_kernel: list[Tensor],
    initial_state: list[Tensor],
    checkpoints: Tensor,
    d_outputs: Tensor,
    d_final_state: list[Tensor],
) -> list[Tensor]:
    operands = decay, inputs, input_kernel, output_kernel
    return _call_core(
        "projected_scan_backward",
        flags,
        _projected_sizes(decay, inputs, output_kernel),
        (*operands, checkpoints, d_outputs, d_final_state),
        _empty_like(_flatten((*operands, initial_state))),
    )


@_projected_scan_backward.register_fake
def _projected_scan_backward_shapes(
    flags,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    checkpoints,
    d_outputs,
    d_final_state,
):
    operands = decay, inputs, input_kernel, output_kernel, initial_state
    return _empty_like(_flatten(operands))


# The impulse response.


def _response_sizes(time, alpha, output_matrix):
    # Blocks of a length that the core chooses.
    return (
        _leading(output_matrix, 3),
        *output_matrix.shape[-3:],
        *(time, bits_of(alpha), 0),
    )


@torch.library.custom_op(
    "keras_linrec::impulse_response", mutates_args=(), device_types="cpu"
)
def _impulse_response(
    time: int, alpha: float, arguments: list[Tensor]
) -> list[Tensor]:
    return _call_core(
        "impulse_response",
        0,
        _response_sizes(time, alpha, arguments[-1]),
        (arguments,),
        _impulse_response_shapes(time, alpha, arguments),
    )


@_impulse_response.register_fake
def _impulse_response_shapes(time, alpha, arguments):
    output_matrix = arguments[-1]
    return [output_matrix.new_empty((*output_matrix.shape[:-1], time))]


@torch.library.custom_op(
    "keras_linrec::impulse_response_backward",
    mutates_args=(),
    device_types="cpu",
)
def _impulse_response_backward(
    time: int, alpha: float, arguments: list[Tensor], d_response: Tensor
) -> list[Tensor]:
    return _call_core(
        "impulse_response_backward",
        0,
        _response_sizes(time, alpha, arguments[-1]),
        (arguments, d_response),
        _empty_like(arguments),
    )


@_impulse_response_backward.register_fake
def _impulse_response_backward_shapes(time, alpha, arguments, d_response):
    return _empty_like(arguments)


# The nonlinear scan.


def _nonlinear_sizes(operands, kept, d_kept, leak):
    inputs, expansion, initial_state = operands[0], operands[4], operands[7]
    return (
        _leading(inputs, 3),
        *inputs.shape[-3:],
        *(initial_state.shape[-1], expansion.shape[-2]),
        *(kept, d_kept, bits_of(leak)),
    )


@torch.library.custom_op(
    "keras_linrec::nonlinear_scan", mutates_args=(), device_types="cpu"
)
def _nonlinear_scan(
    flags: int, leak: float, keep: bool, operands: list[Tensor]
) -> list[Tensor]:
    outputs, final_state = _nonlinear_shapes(flags, leak, keep, operands)
    return _call_core(
        "nonlinear_scan",
        flags,
        _nonlinear_sizes(operands, outputs.shape[-2], 0, leak),
        operands,
        [outputs, final_state],
    )


@_nonlinear_scan.register_fake
def _nonlinear_shapes(flags, leak, keep, operands):
    *leading, time, _ = operands[0].shape
    initial_state = operands[-1]
    kept = time if keep else 0
    return [
        initial_state.new_empty((*leading, kept, initial_state.shape[-1])),
        *_empty_like([initial_state]),
    ]


@_nonlinear_scan.register_kernel("cuda")
def _nonlinear_scan_on_cuda(flags, leak, keep, operands):
    return cuda.nonlinear_scan(_cuda_library(), flags, leak, keep, operands)


@torch.library.custom_op(
    "keras_linrec::nonlinear_scan_backward",
    mutates_args=(),
    device_types="cpu",
)
def _nonlinear_scan_backward(
    flags: int,
    leak: float,
    operands: list[Tensor],
    outputs: Tensor,
    d_outputs: Tensor,
    d_final_state: Tensor,
) -> list[Tensor]:
    return _call_core(
        "nonlinear_scan_backward",
        flags,
        _nonlinear_sizes(
            operands, outputs.shape[-2], d_outputs.shape[-2], leak
        ),
        (operands, outputs, d_outputs, d_final_state),
        _empty_like(operands),
    )


@_nonlinear_scan_backward.register_kernel("cuda")
def _nonlinear_scan_backward_on_cuda(
    flags, leak, operands, outputs, d_outputs, d_final_state
):
    return cuda.nonlinear_scan_backward(
        _cuda_library(),
        *(flags, leak, operands, outputs, d_outputs, d_final_state),
    )


@_nonlinear_scan_backward.register_fake
def _nonlinear_backward_shapes(
    flags, leak, operands, outputs, d_outputs, d_final_state
):
    return _empty_like(operands)


# Gradients.


def _gradient(operator, keep, backward, settings=1, materialise=True):
    """Registers an operator's gradient.

    Args:
        operator: the custom operator, whose first arguments are so many
            `settings`: its flags, or other numbers that are no tensors.
        keep: `keep(arguments, results)`, what `backward` needs of the forward
            pass: a list of tensors and of lists of tensors.
        backward: `backward(*settings, kept, cotangents)`, the gradients of
            all other arguments in a flat sequence.
        materialise: whether results that were not used have cotangents of
            zeros, instead of `None`.
    """

    def setup_context(ctx, inputs, output):
        # A result that nobody used has no cotangent, and not one of zeros.
        ctx.set_materialize_grads(materialise)
        arguments = inputs[settings:]
        kept = keep(arguments, output)
        ctx.settings = inputs[:settings]
        ctx.kept = [None if isinstance(k, Tensor) else len(k) for k in kept]
        ctx.arguments = [
            None if isinstance(a, Tensor) else len(a) for a in arguments
        ]
        ctx.save_for_backward(*_flatten(kept))

    def run_backward(ctx, cotangents):
        kept = _nest(ctx.saved_tensors, ctx.kept)
        gradients = backward(*ctx.settings, kept, cotangents)
        return *(settings * (None,)), *_nest(gradients, ctx.arguments)

    operator.register_autograd(run_backward, setup_context=setup_context)


def _nest(tensors, counts):
    """The inverse of `_flatten`; a count of `None` is one tensor by itself."""
    tensors = iter(tensors)
    return [
        next(tensors) if n is None else [next(tensors) for _ in range(n)]
        for n in counts
    ]


def _pull_back(function, arguments, cotangents, create_graph):
    """Gradients of a plain function of nested arguments, in a flat sequence."""
    counts = [None if isinstance(a, Tensor) else len(a) for a in arguments]
    with torch.enable_grad():
        # Views, because one argument may have been computed from another, and
        # these gradients are those of the function alone.
        tensors = [
            tensor.view_as(tensor)
            if tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in _flatten(arguments)
        ]
        results = _flatten(function(*_nest(tensors, counts)))
        return torch.autograd.grad(
            results,
            tensors,
            cotangents,
            create_graph=create_graph,
            materialize_grads=True,
        )


def _scan_gradient(flags, kept, cotangents):
    field = len(kept[0])
    return _scan_backward(
        flags, *kept, list(cotangents[:field]), list(cotangents[field:])
    )


def _scan_second_gradient(flags, arguments, cotangents):
    def plain(decay, outputs, initial_state, d_outputs, d_final_state):
        reverse = bool(flags & REVERSE)
        return adjoint(
            lambda *call: scan(*call)[0],
            *(decay, outputs, initial_state, d_outputs, reverse),
            d_final_state,
        )

    return _pull_back(plain, arguments, cotangents, torch.is_grad_enabled())


def _plain_projected_scan(flags, arguments):
    outputs, final_state = projection.projected_scan(
        scan, *arguments, bool(flags & REVERSE)
    )
    return [outputs, *final_state]


def _projected_gradient(flags, kept, cotangents):
    d_outputs, *d_final_state, _ = cotangents
    return _projected_scan_backward(flags, *kept, d_outputs, d_final_state)


def _projected_second_gradient(flags, arguments, cotangents):
    def plain(*arguments):
        *operands, _, d_outputs, d_final_state = arguments
        # The checkpoints are a function of the operands: what depends on them
        # is in the plain form's gradient already.
        return _pull_back(
            lambda *operands: _plain_projected_scan(flags, operands),
            operands,
            (d_outputs, *d_final_state),
            True,
        )

    return _pull_back(plain, arguments, cotangents, torch.is_grad_enabled())


def _response_gradient(time, alpha, kept, cotangents):
    (arguments,), (d_response,) = kept, cotangents
    return _impulse_response_backward(time, alpha, arguments, d_response)


def _response_second_gradient(time, alpha, given, cotangents):
    def gradients(arguments, d_response):
        return _pull_back(
            lambda arguments: [
                plain.impulse_response(scan, *arguments, time, alpha)
            ],
            [arguments],
            [d_response],
            True,
        )

    return _pull_back(gradients, given, cotangents, torch.is_grad_enabled())


def _nonlinear_gradient(flags, leak, keep, kept, cotangents):
    operands, outputs = kept
    d_outputs, d_final_state = cotangents
    if d_outputs is None:
        d_outputs = outputs[..., :0, :]
    if d_final_state is None:
        d_final_state = torch.zeros_like(operands[-1])
    return _nonlinear_scan_backward(
        flags, leak, operands, outputs, d_outputs, d_final_state
    )


def _nonlinear_second_gradient(flags, leak, given, cotangents):
    operands, outputs, *upstream = given
    kept = upstream[0].shape[1]

    def states(operands):
        outputs, final_state = nonlinear_recurrence.with_last_state(
            loop,
            dynamics_of(flags, leak),
            nonlinear_recurrence.Operands(*operands),
        )
        return [outputs[:, :kept], final_state]

    def gradients(operands, _, *upstream):
        # The outputs are a function of the operands: what depends on them is
        # in the plain form's gradient already.
        return _pull_back(states, [operands], upstream, True)

    return _pull_back(gradients, given, cotangents, torch.is_grad_enabled())


_gradient(
    _scan,
    lambda arguments, results: (
        arguments[0],
        results[: len(arguments[0])],
        arguments[2],
    ),
    _scan_gradient,
)
_gradient(_scan_backward, lambda a, _: a, _scan_second_gradient)
_gradient(
    _projected_scan, lambda a, results: (*a, results[-1]), _projected_gradient
)
_gradient(_projected_scan_backward, lambda a, _: a, _projected_second_gradient)
_gradient(_impulse_response, lambda a, _: a, _response_gradient, settings=2)
_gradient(
    _impulse_response_backward,
    lambda a, _: a,
    _response_second_gradient,
    settings=2,
)


_gradient(
    _nonlinear_scan,
    lambda arguments, results: (arguments[0], results[0]),
    _nonlinear_gradient,
    settings=3,
    materialise=False,
)
_gradient(
    _nonlinear_scan_backward,
    lambda a, _: a,
    _nonlinear_second_gradient,
    settings=2,
)


# `torch.vmap`.


def _batched(operator, settings=1):
    @operator.register_vmap
    def run(info, in_dims, *given):
        arguments = given[settings:]

        def to_front(tensor, dim):
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        moved = [
            to_front(argument, dims)
            if isinstance(argument, Tensor)
            else [to_front(*pair) for pair in zip(argument, dims)]
            for argument, dims in zip(arguments, in_dims[settings:])
        ]
        results = operator(*given[:settings], *moved)
        return results, [0] * len(results)


for _operator in (
    _scan,
    _scan_backward,
    _projected_scan,
    _projected_scan_backward,
):
    _batched(_operator)
for _operator in (
    _impulse_response,
    _impulse_response_backward,
    _nonlinear_scan_backward,
):
    _batched(_operator, settings=2)
_batched(_nonlinear_scan, settings=3)
