"""The native kernels on PyTorch, by the operators of `operators.py`.

Importing this module builds and loads the library.
"""

import torch

from keras_linrec.kernels import impulse_response as plain
from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels.native import few_steps
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch import gradients as gradients
from keras_linrec.kernels.torch.loop import loop
from keras_linrec.kernels.torch.operators import cuda_library as _cuda_library
from keras_linrec.kernels.torch.operators import (
    impulse_response as _impulse_response,
)
from keras_linrec.kernels.torch.operators import (
    nonlinear_scan as _nonlinear_scan,
)
from keras_linrec.kernels.torch.operators import (
    projected_scan as _projected_scan,
)
from keras_linrec.kernels.torch.operators import scan as _scan
from keras_linrec.kernels.torch.scan import associative
from keras_linrec.kernels.torch.tensors import alike as _alike
from keras_linrec.kernels.torch.tensors import groups as _groups


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
