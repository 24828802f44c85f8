"""The native kernels on PyTorch, which call the operators of `operators.py`.

Importing this module builds and loads the library.
"""

import torch

from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.torch import gradients as gradients
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
from keras_linrec.kernels.torch.tensors import alike as _alike
from keras_linrec.kernels.torch.tensors import groups as _groups


def scan(decay, inputs, initial_state, reverse=False):
    """Outputs and final state, both tuples."""
    decay, inputs, initial_state = _alike(decay, inputs, initial_state)
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
    """Outputs, a tensor, and the final state, a tuple."""
    outputs, *final_state, _ = _projected_scan(
        flags_of(decay, reverse),
        list(decay),
        inputs,
        *(list(input_kernel), list(output_kernel), list(initial_state)),
    )
    return outputs, tuple(final_state)


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.impulse_response`."""
    arguments = p, d, q, t, b, timescale, output_matrix
    ((p, d, q, t, b, timescale, output_matrix),) = _alike(arguments)
    arguments = p, d, q, t, b, timescale, output_matrix
    (response,) = _impulse_response(time, float(alpha), list(arguments))
    return response


def nonlinear_scan(dynamics, operands, keep_all=True):
    """See `Kernel.nonlinear_scan` in the registry."""
    (operands,) = _alike(operands)
    operands = nonlinear_recurrence.Operands(*operands)
    flags = nonlinear_flags(dynamics, operands)
    keep = keep_all or (
        torch.is_grad_enabled() and any(part.requires_grad for part in operands)
    )
    outputs, final_state = _nonlinear_scan(*flags, keep, list(operands))
    return outputs, final_state
