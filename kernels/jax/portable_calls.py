"""What a call of the core computes, in portable form.

It runs where a program is lowered for another platform than the CPU, or for a
file. Forward and backward pass run on the same platform, so that what one
hands to the other beside its results may differ from what the core does.
"""

import jax
import jax.numpy as jnp

from keras_linrec.kernels import causal_convolution as convolution
from keras_linrec.kernels import impulse_response as structured
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.jax.loop import loop
from keras_linrec.kernels.jax.scan import portable
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import number_of
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.nonlinear_recurrence import with_last_state

_scan = projection.with_final_state(portable)


def _linear(results, decay, inputs, initial_state, flags):
    return _scan(decay, inputs, initial_state, bool(flags & REVERSE))


def _linear_backward(results, kept, cotangents, flags):
    d_outputs, d_final_state = cotangents
    reverse = bool(flags & REVERSE)
    return adjoint(portable, *kept, d_outputs, reverse, d_final_state)


def _plain_projected(flags):
    def run(*arguments):
        return projection.projected_scan(
            _scan, *arguments, bool(flags & REVERSE)
        )

    return run


def _projected(results, *arguments, flags, block):
    outputs, final_state = _plain_projected(flags)(*arguments)
    *_, checkpoints = results
    # The backward pass of this form needs no state but the first.
    first = jnp.stack(arguments[-1], axis=1)
    checkpoints = jnp.zeros(checkpoints.shape, checkpoints.dtype)
    return outputs, final_state, checkpoints.at[:, 0].set(first)


def _projected_backward(
    results, operands, checkpoints, cotangents, flags, block
):
    parts = len(operands[0])
    initial_state = tuple(checkpoints[:, 0, part] for part in range(parts))
    operands = [tuple(o) if isinstance(o, list) else o for o in operands]
    _, pull_back = jax.vjp(_plain_projected(flags), *operands, initial_state)
    return pull_back(cotangents)


def _response(results, *arguments, time, alpha):
    return structured.impulse_response(
        _scan, *arguments, time, number_of(alpha)
    )


def _response_backward(results, arguments, d_response, time, alpha):
    def run(*arguments):
        return _response(None, *arguments, time=time, alpha=alpha)

    return jax.vjp(run, *arguments)[1](d_response)


def _convolution(results, inputs, response):
    return convolution.causal_convolution(inputs, response)


def _convolution_backward(results, inputs, response, d_outputs):
    run = convolution.causal_convolution
    return jax.vjp(run, inputs, response)[1](d_outputs)


def _states(flags, leak, kept):
    def run(operands):
        outputs, final_state = with_last_state(
            loop, dynamics_of(flags, number_of(leak)), Operands(*operands)
        )
        return outputs[:, :kept], final_state

    return run


def _nonlinear(results, *operands, flags, leak):
    kept = results[0].shape[1]
    return _states(flags, leak, kept)(operands)


def _nonlinear_backward(results, operands, outputs, cotangents, flags, leak):
    run = _states(flags, leak, cotangents[0].shape[1])
    return jax.vjp(run, tuple(operands))[1](tuple(cotangents))


# By the core's name: functions of the results' shapes, the arguments and, by
# name, the attributes of a call.
CALLS = {
    "keras_linrec_scan": _linear,
    "keras_linrec_scan_backward": _linear_backward,
    "keras_linrec_projected_scan": _projected,
    "keras_linrec_projected_scan_backward": _projected_backward,
    "keras_linrec_impulse_response": _response,
    "keras_linrec_impulse_response_backward": _response_backward,
    "keras_linrec_causal_convolution": _convolution,
    "keras_linrec_causal_convolution_backward": _convolution_backward,
    "keras_linrec_nonlinear_scan": _nonlinear,
    "keras_linrec_nonlinear_scan_backward": _nonlinear_backward,
}
