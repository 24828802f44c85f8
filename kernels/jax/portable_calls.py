"""The portable form of each call of the core.

It runs in programs that are lowered for another platform than the CPU, or for a
file. Forward and backward pass run on the same platform, so that the residuals
may differ from those of the core.
"""

from functools import partial

import jax
import jax.numpy as jnp

from keras_linrec.kernels.jax import plain_gradients
from keras_linrec.kernels.jax.scan import portable
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import TO_PLACES
from keras_linrec.kernels.native.call_encoding import WITH_MASKED
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import number_of
from keras_linrec.kernels.operations import impulse_response as structured
from keras_linrec.kernels.operations import projected_scan as projection
from keras_linrec.kernels.operations import varying_response as varying
from keras_linrec.kernels.operations.carried_response import carried_response
from keras_linrec.kernels.operations.causal_convolution import (
    causal_convolution,
)
from keras_linrec.kernels.operations.move_steps import move_steps

_scan = projection.with_final_state(portable)
_steps = partial(varying.varying_response, _scan)


def _linear(results, decay, inputs, resets, initial_state, flags):
    resets = resets if flags & RESETS else None
    return _scan(decay, inputs, initial_state, bool(flags & REVERSE), resets)


def _linear_backward(results, kept, cotangents, flags):
    reverse = bool(flags & REVERSE)
    return plain_gradients.of_scan(_scan, reverse, kept, cotangents)


def _projected(results, *operands, flags, block):
    *operands, resets, initial_state = operands
    outputs, final_state = projection.projected_scan(
        _scan,
        *operands,
        initial_state,
        bool(flags & REVERSE),
        resets if flags & RESETS else None,
    )
    *_, checkpoints = results
    # The backward pass of this form needs no state but the first.
    first = jnp.stack(initial_state, axis=1)
    checkpoints = jnp.zeros(checkpoints.shape, checkpoints.dtype)
    return outputs, final_state, checkpoints.at[:, 0].set(first)


def _projected_backward(
    results, operands, checkpoints, cotangents, flags, block
):
    parts = len(operands[0])
    initial_state = tuple(checkpoints[:, 0, part] for part in range(parts))
    return plain_gradients.of_projected_scan(
        _scan, bool(flags & REVERSE), (*operands, initial_state), cotangents
    )


def _response(results, *arguments, time, alpha):
    return structured.impulse_response(
        _scan, *arguments, time, number_of(alpha)
    )


def _response_backward(results, arguments, d_response, time, alpha):
    gradients = plain_gradients.of_impulse_response(
        _scan, time, number_of(alpha), arguments, d_response
    )
    return _wanted(results, gradients)


def _wanted(results, gradients):
    """The gradients; those without elements are not wanted."""
    return jax.tree.map(
        lambda result, gradient: gradient.reshape(-1)[: result.size].reshape(
            result.shape
        ),
        list(results),
        jax.tree.leaves(gradients),
    )


def _varying(results, *arguments, block, alpha):
    outputs, final_state = varying.varying_response(
        _scan, *arguments, number_of(alpha)
    )
    *_, checkpoints = results
    # The backward pass of this form reads none of them.
    return outputs, final_state, jnp.zeros(checkpoints.shape, outputs.dtype)


def _varying_backward(results, arguments, _, cotangents, block, alpha):
    gradients = plain_gradients.of_varying_response(
        _scan, number_of(alpha), arguments, cotangents
    )
    resets = 8  # which have no gradient
    return *gradients[:resets], *gradients[resets + 1 :]


def _carried(results, *arguments, alpha):
    return carried_response(_steps, *arguments, number_of(alpha))


def _carried_backward(results, arguments, cotangents, alpha):
    gradients = plain_gradients.of_carried_response(
        _steps, number_of(alpha), arguments, cotangents
    )
    # Lengths and resets have no gradients.
    return *gradients[:7], *gradients[9:]


def _convolution(results, inputs, response, flags, leak):
    activation = activation_of(flags, number_of(leak))
    return causal_convolution(inputs, response, activation)


def _convolution_backward(results, inputs, response, d_outputs, flags, leak):
    gradients = plain_gradients.of_causal_convolution(
        activation_of(flags, number_of(leak)), inputs, response, d_outputs
    )
    return _wanted(results, gradients)


def _move(results, sequences, mask, flags):
    return move_steps(
        sequences, mask, bool(flags & TO_PLACES), bool(flags & WITH_MASKED)
    )


def _nonlinear(results, *operands, flags, leak):
    dynamics, kept = dynamics_of(flags, number_of(leak)), results[0].shape[1]
    return plain_gradients.nonlinear_states(dynamics, operands, kept)


def _nonlinear_backward(results, operands, outputs, cotangents, flags, leak):
    return plain_gradients.of_nonlinear_scan(
        dynamics_of(flags, number_of(leak)), operands, cotangents
    )


# By the core's name: functions of the shapes of the results, the arguments and,
# by name, the attributes of a call.
CALLS = {
    "keras_linrec_scan": _linear,
    "keras_linrec_scan_backward": _linear_backward,
    "keras_linrec_projected_scan": _projected,
    "keras_linrec_projected_scan_backward": _projected_backward,
    "keras_linrec_impulse_response": _response,
    "keras_linrec_impulse_response_backward": _response_backward,
    "keras_linrec_varying_response": _varying,
    "keras_linrec_varying_response_backward": _varying_backward,
    "keras_linrec_carried_response": _carried,
    "keras_linrec_carried_response_backward": _carried_backward,
    "keras_linrec_causal_convolution": _convolution,
    "keras_linrec_causal_convolution_backward": _convolution_backward,
    "keras_linrec_move_steps": _move,
    "keras_linrec_nonlinear_scan": _nonlinear,
    "keras_linrec_nonlinear_scan_backward": _nonlinear_backward,
}
