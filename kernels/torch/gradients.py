"""The operators' gradients and `torch.vmap` rules.

Importing this module registers them. The gradient of an operator is another
operator, whose own gradient is that of the plain form and has derivatives of
any order.
"""

from functools import partial

import torch
from torch import Tensor

from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import transposed_move
from keras_linrec.kernels.operations import carried_response
from keras_linrec.kernels.operations import causal_convolution
from keras_linrec.kernels.operations import impulse_response
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations import projected_scan
from keras_linrec.kernels.operations import varying_response
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.torch import batched_gradients
from keras_linrec.kernels.torch import operators
from keras_linrec.kernels.torch.loop import loop
from keras_linrec.kernels.torch.tensors import alike
from keras_linrec.kernels.torch.tensors import counts
from keras_linrec.kernels.torch.tensors import flatten
from keras_linrec.kernels.torch.tensors import given
from keras_linrec.kernels.torch.tensors import groups
from keras_linrec.kernels.torch.tensors import nest
from keras_linrec.kernels.wanted import replace_unwanted
from keras_linrec.kernels.wanted import response_gradients


def _register(
    operator, keep, backward, settings=1, materialise=True, by_need=False
):
    """Registers an operator's gradient and its `torch.vmap` rule.

    Args:
        operator: the custom operator.
        keep: `keep(arguments, results)`, which returns what `backward` needs
            of the forward pass: a list of tensors and lists of tensors.
        backward: `backward(*settings, kept, cotangents)`, which returns the
            gradients of all tensor arguments in a flat sequence.
        settings: the number of leading arguments that are not tensors, such
            as flags.
        materialise: whether unused results have cotangents of zeros instead
            of `None`.
        by_need: whether `backward` first takes a list of booleans, which of
            the tensor arguments need a gradient. Defaults to `False`.
    """

    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(materialise)
        arguments = inputs[settings:]
        kept = keep(arguments, output)
        ctx.settings = inputs[:settings]
        ctx.kept, ctx.arguments = counts(kept), counts(arguments)
        ctx.save_for_backward(*flatten(kept))

    def run_backward(ctx, cotangents):
        kept = nest(ctx.saved_tensors, ctx.kept)
        needs = [list(ctx.needs_input_grad[settings:])] if by_need else []
        gradients = backward(*needs, *ctx.settings, kept, cotangents)
        return *[None] * settings, *nest(gradients, ctx.arguments)

    def run_batched(info, in_dims, *given):
        def to_front(tensor, dim):
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        moved = [
            to_front(argument, dims)
            if isinstance(argument, Tensor)
            else [to_front(*pair) for pair in zip(argument, dims)]
            for argument, dims in zip(given[settings:], in_dims[settings:])
        ]
        results = operator(*given[:settings], *moved)
        return results, [0] * len(results)

    operator.register_autograd(run_backward, setup_context=setup_context)
    operator.register_vmap(run_batched)
    batched_gradients.register(operator, settings)


def _register_backward(operator, plain, settings=1):
    """`_register` for an operator that is the gradient of another one.

    `plain(*settings, *arguments)` computes the same in operations that
    PyTorch differentiates.
    """

    def backward(*given):
        *numbers, arguments, cotangents = given
        return _pull_back(
            partial(plain, *numbers),
            arguments,
            cotangents,
            create_graph=torch.is_grad_enabled(),
        )

    _register(operator, lambda arguments, _: arguments, backward, settings)


def _pull_back(function, arguments, cotangents, create_graph=True):
    """Gradients of a plain function of nested arguments, in a flat sequence."""
    with torch.enable_grad():
        # Views, because one argument may have been computed from another, and
        # the gradients are to be those of the function alone.
        tensors = [
            tensor.view_as(tensor)
            if tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in flatten(arguments)
        ]
        results = flatten(function(*nest(tensors, counts(arguments))))
        return torch.autograd.grad(
            results,
            tensors,
            cotangents,
            create_graph=create_graph,
            materialize_grads=True,
        )


def _nothing(gradient):
    return gradient.flatten()[:0]


def scan(decay, inputs, initial_state, reverse=False, resets=None):
    """Outputs and final state, both tuples, by the operator."""
    decay, inputs, initial_state = alike(decay, inputs, initial_state)
    resets = given(resets, inputs[0])
    results = operators.scan(
        flags_of(decay, reverse, resets),
        list(decay),
        list(inputs),
        resets,
        list(initial_state),
    )
    return groups(results, (len(decay), len(decay)))


# The scan.


def _keep_of_scan(arguments, results):
    decay, _, resets, initial_state = arguments
    return decay, results[: len(decay)], resets, initial_state


def _scan_gradient(flags, kept, cotangents):
    field = len(kept[0])
    gradients = operators.scan_backward(
        flags, *kept, list(cotangents[:field]), list(cotangents[field:])
    )
    return *gradients[:-field], None, *gradients[-field:]


def _plain_scan_gradient(
    flags, decay, outputs, resets, initial_state, d_outputs, d_final_state
):
    return flatten(
        adjoint(
            lambda *call: scan(*call)[0],
            decay,
            outputs,
            initial_state,
            d_outputs,
            bool(flags & REVERSE),
            d_final_state,
            resets if flags & RESETS else None,
        )
    )


_register(operators.scan, _keep_of_scan, _scan_gradient)
_register_backward(operators.scan_backward, _plain_scan_gradient)


# The projected scan.


def _projected_gradient(flags, kept, cotangents):
    *operands, initial_state, checkpoints = kept
    d_outputs, *d_final_state, _ = cotangents
    gradients = operators.projected_scan_backward(
        flags, *operands, checkpoints, d_outputs, d_final_state, initial_state
    )
    field = len(initial_state)
    return *gradients[:-field], None, *gradients[-field:]


def _plain_projected_gradient(flags, *arguments):
    # The checkpoints are a function of the operands: the gradient of the plain
    # form includes their part.
    *operands, resets, _, d_outputs, d_final_state, initial_state = arguments
    resets = resets if flags & RESETS else None

    def plain(*operands):
        outputs, final_state = projected_scan.projected_scan(
            scan, *operands, bool(flags & REVERSE), resets
        )
        return outputs, *final_state

    return _pull_back(
        plain, (*operands, initial_state), (d_outputs, *d_final_state)
    )


_register(
    operators.projected_scan,
    lambda arguments, results: (*arguments, results[-1]),
    _projected_gradient,
)
_register_backward(operators.projected_scan_backward, _plain_projected_gradient)


# The impulse response.


def _response_gradient(needed, time, alpha, kept, cotangents):
    wanted = response_gradients(*needed)
    gradients = operators.impulse_response_backward(
        wanted, time, alpha, *kept, *cotangents
    )
    return replace_unwanted(gradients, wanted, lambda _: None)


def _plain_response_gradient(wanted, time, alpha, arguments, d_response):
    def plain(arguments):
        response = impulse_response.impulse_response(
            scan, *arguments, time, alpha
        )
        return [response]

    gradients = _pull_back(plain, [arguments], [d_response])
    return replace_unwanted(gradients, wanted, _nothing)


_register(
    operators.impulse_response,
    lambda arguments, _: arguments,
    _response_gradient,
    settings=2,
    by_need=True,
)
_register_backward(
    operators.impulse_response_backward, _plain_response_gradient, settings=3
)


# The response to steps that differ in length.


def _varying_gradient(alpha, kept, cotangents):
    arguments, checkpoints = kept
    *gradients, d_inputs, d_state = operators.varying_response_backward(
        alpha, arguments, checkpoints, *cotangents[:2]
    )
    of_resets = None
    return *gradients, of_resets, d_inputs, d_state


def _plain_varying_gradient(alpha, arguments, _, *cotangents):
    def plain(arguments):
        return varying_response.varying_response(scan, *arguments, alpha)

    gradients = _pull_back(plain, [arguments], cotangents)
    *gradients, _, d_inputs, d_state = gradients
    return *gradients, d_inputs, d_state


_register(
    operators.varying_response,
    lambda arguments, results: (arguments[0], results[-1]),
    _varying_gradient,
)
_register_backward(operators.varying_response_backward, _plain_varying_gradient)


# The response with states before and after it.


def _varying(*arguments):
    *arguments, alpha = arguments
    return operators.varying_response(float(alpha), list(arguments))[:2]


def _carried_gradient(alpha, kept, cotangents):
    *gradients, d_inputs, d_state = operators.carried_response_backward(
        alpha, *kept, *cotangents
    )
    of_lengths = of_resets = None
    return *gradients, of_lengths, of_resets, d_inputs, d_state


def _plain_carried_gradient(alpha, arguments, *cotangents):
    def plain(arguments):
        return carried_response.carried_response(_varying, *arguments, alpha)

    gradients = _pull_back(plain, [arguments], cotangents)
    *gradients, _, _, d_inputs, d_state = gradients
    return *gradients, d_inputs, d_state


_register(
    operators.carried_response,
    lambda arguments, _: arguments,
    _carried_gradient,
)
_register_backward(operators.carried_response_backward, _plain_carried_gradient)


# The causal convolution.


def _convolution_gradient(wanted, flags, leak, kept, cotangents):
    gradients = operators.causal_convolution_backward(
        wanted, flags, leak, *kept, *cotangents
    )
    return replace_unwanted(gradients, wanted, lambda _: None)


def _plain_convolution_gradient(
    wanted, flags, leak, inputs, response, d_outputs
):
    activation = activation_of(flags, leak)

    def plain(*arguments):
        return [causal_convolution.causal_convolution(*arguments, activation)]

    gradients = _pull_back(plain, (inputs, response), [d_outputs])
    return replace_unwanted(gradients, wanted, _nothing)


_register(
    operators.causal_convolution,
    lambda arguments, _: arguments,
    _convolution_gradient,
    settings=2,
    by_need=True,
)
_register_backward(
    operators.causal_convolution_backward,
    _plain_convolution_gradient,
    settings=3,
)


# Moves of steps.


def _move_gradient(flags, kept, cotangents):
    (mask,) = kept
    (d_sequences,) = operators.move_steps(
        transposed_move(flags), *cotangents, mask
    )
    return d_sequences, None


_register(
    operators.move_steps, lambda arguments, _: arguments[1:], _move_gradient
)


# The nonlinear scan.


def _nonlinear_gradient(flags, leak, keep, kept, cotangents):
    operands, outputs = kept
    d_outputs, d_final_state = cotangents
    if d_outputs is None:
        d_outputs = outputs[..., :0, :]
    if d_final_state is None:
        d_final_state = torch.zeros_like(operands[-1])
    return operators.nonlinear_scan_backward(
        flags, leak, operands, outputs, d_outputs, d_final_state
    )


def _plain_nonlinear_gradient(flags, leak, operands, _, *upstream):
    # The outputs are a function of the operands: the gradient of the plain
    # form includes their part.
    kept = upstream[0].shape[1]

    def plain(operands):
        outputs, final_state = nonlinear_recurrence.with_last_state(
            loop,
            dynamics_of(flags, leak),
            nonlinear_recurrence.Operands(*operands),
        )
        return outputs[:, :kept], final_state

    return _pull_back(plain, [operands], upstream)


_register(
    operators.nonlinear_scan,
    lambda arguments, results: (arguments[0], results[0]),
    _nonlinear_gradient,
    settings=3,
    materialise=False,
)
_register_backward(
    operators.nonlinear_scan_backward, _plain_nonlinear_gradient, settings=2
)
