"""The native kernels on PyTorch, which call the operators of `operators.py`.

Importing this module builds and loads the library.
"""

import torch

from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import move_flags
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.torch import is_recorded
from keras_linrec.kernels.torch import is_transformed
from keras_linrec.kernels.torch import operators
from keras_linrec.kernels.torch.gradients import scan as scan
from keras_linrec.kernels.torch.tensors import alike
from keras_linrec.kernels.torch.tensors import given


def projected_scan(
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """Outputs, a tensor, and the final state, a tuple."""
    resets = given(resets, inputs)
    outputs, *final_state, _ = operators.projected_scan(
        flags_of(decay, reverse, resets),
        list(decay),
        inputs,
        list(input_kernel),
        list(output_kernel),
        resets,
        list(initial_state),
    )
    return outputs, tuple(final_state)


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.operations.impulse_response`."""
    (arguments,) = alike((p, d, q, t, b, timescale, output_matrix))
    (response,) = operators.impulse_response(
        time, float(alpha), list(arguments)
    )
    return response


def varying_response(*arguments):
    """See `keras_linrec.kernels.operations.varying_response`."""
    *arguments, alpha = arguments
    (arguments,) = alike(arguments)
    outputs, final_state, _ = operators.varying_response(
        float(alpha), list(arguments)
    )
    return outputs, final_state


def carried_response(*arguments):
    """See `keras_linrec.kernels.operations.carried_response`."""
    *arguments, alpha = arguments
    (arguments,) = alike(arguments)
    outputs, final_state = operators.carried_response(
        float(alpha), list(arguments)
    )
    return outputs, final_state


def causal_convolution(inputs, response, activation):
    """See `keras_linrec.kernels.operations.causal_convolution`."""
    ((inputs, response),) = alike((inputs, response))
    (outputs,) = operators.causal_convolution(
        *activation_flags(activation), inputs, response
    )
    return outputs


def move_steps(sequences, mask, to_places, with_masked):
    """See `keras_linrec.kernels.operations.move_steps`."""
    if _is_whole(mask):
        return sequences
    (moved,) = operators.move_steps(
        move_flags(to_places, with_masked),
        sequences,
        mask.to(sequences.dtype),
    )
    return moved


def _is_whole(mask):
    """Whether no step is masked, if that can be read now.

    An operator may not return its argument, and a copy at (16, 2048, 128) takes
    3 to 8 ms, most of it for memory that is new.
    """
    return not is_recorded() and mask.device.type == "cpu" and bool(mask.all())


def nonlinear_scan(dynamics, operands, keep_all=True):
    """See `Kernel.nonlinear_scan` in the registry."""
    (operands,) = alike(operands)
    operands = nonlinear_recurrence.Operands(*operands)
    flags = nonlinear_flags(dynamics, operands)
    # Within `torch.vmap`, tensors do not say whether they require gradients.
    keep = keep_all or (
        torch.is_grad_enabled()
        and (is_transformed() or any(part.requires_grad for part in operands))
    )
    outputs, final_state = operators.nonlinear_scan(
        *flags, keep, list(operands)
    )
    return outputs, final_state
