"""The gradients of the core's functions, in operations that JAX differentiates.

With the native scan they give second derivatives of native calls. With the
portable scan they are the portable forms of native gradients.
"""

import jax

from keras_linrec.kernels.jax.loop import loop
from keras_linrec.kernels.operations import carried_response
from keras_linrec.kernels.operations import causal_convolution
from keras_linrec.kernels.operations import impulse_response
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations import projected_scan
from keras_linrec.kernels.operations import varying_response
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.resets import or_none


def of_scan(scan, reverse, kept, cotangents):
    """Cotangents of `(decay, inputs, resets, initial_state)`.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse, resets)`, which
            returns `(outputs, final_state)`.
        reverse: the direction of the forward pass.
        kept: decay, outputs, resets and initial state of the forward pass.
        cotangents: those of `(outputs, final_state)`.
    """
    d_outputs, d_final_state = cotangents
    decay, outputs, resets, initial_state = kept
    d_decay, d_inputs, d_initial_state = adjoint(
        lambda *call: scan(*call)[0],
        decay,
        outputs,
        initial_state,
        d_outputs,
        reverse,
        d_final_state,
        or_none(resets),
    )
    return d_decay, d_inputs, None, d_initial_state


def of_projected_scan(scan, reverse, arguments, cotangents):
    """Cotangents of the tensor arguments of a projected scan."""
    *operands, resets, initial_state = arguments
    resets = or_none(resets)

    def plain(*arguments):
        return projected_scan.projected_scan(scan, *arguments, reverse, resets)

    gradients = jax.vjp(plain, *operands, initial_state)[1](cotangents)
    return *gradients[:-1], None, gradients[-1]


def of_impulse_response(scan, time, alpha, arguments, d_response):
    """Cotangents of the tensor arguments of an impulse response."""

    def plain(*arguments):
        return impulse_response.impulse_response(scan, *arguments, time, alpha)

    return jax.vjp(plain, *arguments)[1](d_response)


def of_varying_response(scan, alpha, arguments, cotangents):
    """Cotangents of the tensor arguments of a varying response."""

    def plain(*arguments):
        return varying_response.varying_response(scan, *arguments, alpha)

    return jax.vjp(plain, *arguments)[1](tuple(cotangents))


def of_carried_response(varying, alpha, arguments, cotangents):
    """Cotangents of the tensor arguments of a carried response."""

    def plain(*arguments):
        return carried_response.carried_response(varying, *arguments, alpha)

    return jax.vjp(plain, *arguments)[1](tuple(cotangents))


def of_causal_convolution(activation, inputs, response, d_outputs):
    """Cotangents of `(inputs, response)`."""

    def plain(inputs, response):
        return causal_convolution.causal_convolution(
            inputs, response, activation
        )

    return jax.vjp(plain, inputs, response)[1](d_outputs)


def of_nonlinear_scan(dynamics, operands, cotangents):
    """Cotangents of the operands of a nonlinear scan."""
    kept = cotangents[0].shape[1]

    def plain(*operands):
        return nonlinear_states(dynamics, operands, kept)

    return jax.vjp(plain, *operands)[1](tuple(cotangents))


def nonlinear_states(dynamics, operands, kept):
    """The states of the first `kept` steps, and the final state."""
    outputs, final_state = nonlinear_recurrence.with_last_state(
        loop, dynamics, nonlinear_recurrence.Operands(*operands)
    )
    return outputs[:, :kept], final_state
