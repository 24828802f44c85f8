"""The structured systems of `LSSL`, by the C++ core on JAX."""

import jax

from keras_linrec.kernels.jax import plain_gradients
from keras_linrec.kernels.jax.core_calls import call
from keras_linrec.kernels.jax.core_calls import like
from keras_linrec.kernels.jax.core_calls import like_wanted
from keras_linrec.kernels.jax.core_calls import require_call_shapes
from keras_linrec.kernels.jax.native_scans import scan
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.native import varying_block
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import response_gradients
from keras_linrec.kernels.native.call_shapes import final_shapes
from keras_linrec.kernels.native.call_shapes import free_shapes
from keras_linrec.kernels.native.call_shapes import response_shapes
from keras_linrec.kernels.native.call_shapes import varying_checkpoint_shape
from keras_linrec.kernels.native.call_shapes import varying_shapes


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.impulse_response`."""
    arguments = p, d, q, t, b, timescale, output_matrix
    require_call_shapes(
        "impulse_response",
        ["arguments"],
        [arguments],
        [response_shapes(*output_matrix.shape)],
    )
    return _impulse_response(time, float(alpha), arguments)


def varying_response(*arguments):
    """See `keras_linrec.kernels.varying_response`."""
    *arguments, alpha = arguments
    output_matrix, inputs = arguments[6], arguments[9]
    require_call_shapes(
        "varying_response",
        ["arguments"],
        [arguments],
        [varying_shapes(*inputs.shape, *output_matrix.shape[1:])],
    )
    outputs, final_state, _ = _varying_response(float(alpha), *arguments)
    return outputs, final_state


def free_response(*arguments):
    """See `keras_linrec.kernels.carried_states`."""
    *arguments, time, alpha = arguments
    output_matrix, state = arguments[-2:]
    batch, features, size = state.shape
    require_call_shapes(
        "free_response",
        ["arguments"],
        [arguments],
        [free_shapes(batch, features, output_matrix.shape[1], size)],
    )
    return _free_response(time, float(alpha), *arguments)


def final_states(*arguments):
    """See `keras_linrec.kernels.carried_states`."""
    *arguments, alpha = arguments
    output_matrix, _, inputs, _ = arguments[6:]
    require_call_shapes(
        "final_states",
        ["arguments"],
        [arguments],
        [final_shapes(*inputs.shape, *output_matrix.shape[1:])],
    )
    return _final_states(float(alpha), *arguments)


# The impulse response.


def _response_forward(time, alpha, arguments):
    output_matrix = arguments[-1]
    return call(
        "keras_linrec_impulse_response",
        jax.ShapeDtypeStruct(
            (*output_matrix.shape[:2], time), output_matrix.dtype
        ),
        arguments,
        time=time,
        alpha=bits_of(alpha),
    )


def _remember_response(time, alpha, arguments):
    return _impulse_response(time, alpha, arguments), arguments


def _response_backward(time, alpha, needed, arguments, d_response):
    gradients = call(
        "keras_linrec_impulse_response_backward",
        like_wanted(arguments, response_gradients(needed)),
        (arguments, d_response),
        time=time,
        alpha=bits_of(alpha),
    )
    return (gradients,)


def _plain_response_backward(time, alpha, arguments, d_response):
    gradients = plain_gradients.of_impulse_response(
        scan, time, alpha, arguments, d_response
    )
    return (gradients,)


_impulse_response = twice_differentiable(
    _response_forward,
    _remember_response,
    _response_backward,
    _plain_response_backward,
    settings=2,
    by_need=True,
)


# The response to steps that differ in length.

_ROWS_OF_VARYING = *[False] * 7, *[True] * 4
_RESETS = 8


def _without_resets(arguments):
    return *arguments[:_RESETS], *arguments[_RESETS + 1 :]


def _varying_attributes(alpha, arguments):
    inputs, state = arguments[-2:]
    block = varying_block(inputs.shape[1], state.shape[2])
    return {"block": block, "alpha": bits_of(alpha)}


def _varying_forward(alpha, *arguments):
    """Outputs, final state, and the checkpoints that the gradient needs."""
    output_matrix, inputs, state = arguments[6], *arguments[-2:]
    attributes = _varying_attributes(alpha, arguments)
    checkpoints = varying_checkpoint_shape(
        *inputs.shape, state.shape[2], attributes["block"]
    )
    outputs = *inputs.shape, output_matrix.shape[1]
    return call(
        "keras_linrec_varying_response",
        (
            jax.ShapeDtypeStruct(outputs, inputs.dtype),
            like(state),
            jax.ShapeDtypeStruct(checkpoints, inputs.dtype),
        ),
        arguments,
        rows=(_ROWS_OF_VARYING, True),
        **attributes,
    )


def _remember_varying(alpha, *arguments):
    results = _varying_response(alpha, *arguments)
    return results, (arguments, results[-1])


def _varying_backward(alpha, kept, cotangents):
    arguments, _ = kept
    gradients = call(
        "keras_linrec_varying_response_backward",
        like(_without_resets(arguments)),
        (*kept, cotangents),
        rows=(
            (_ROWS_OF_VARYING, True, True),
            _without_resets(_ROWS_OF_VARYING),
        ),
        **_varying_attributes(alpha, arguments),
    )
    no_gradient = jax.numpy.zeros_like(arguments[_RESETS])
    return *gradients[:_RESETS], no_gradient, *gradients[_RESETS:]


def _plain_varying_backward(alpha, kept, cotangents):
    arguments, _ = kept
    return plain_gradients.of_varying_response(
        scan, alpha, arguments, cotangents
    )


_varying_response = twice_differentiable(
    _varying_forward,
    _remember_varying,
    _varying_backward,
    _plain_varying_backward,
    differentiated=2,
)


# States that pass through a sequence.

_ROWS_OF_FREE = *[False] * 7, True


def _free_forward(time, alpha, *arguments):
    output_matrix, state = arguments[-2:]
    batch, features, _ = state.shape
    outputs = batch, time, features, output_matrix.shape[1]
    return call(
        "keras_linrec_free_response",
        jax.ShapeDtypeStruct(outputs, state.dtype),
        arguments,
        rows=(_ROWS_OF_FREE, True),
        time=time,
        alpha=bits_of(alpha),
    )


def _remember_free(time, alpha, *arguments):
    return _free_response(time, alpha, *arguments), arguments


def _free_backward(time, alpha, arguments, d_outputs):
    return call(
        "keras_linrec_free_response_backward",
        like(arguments),
        (arguments, d_outputs),
        rows=((_ROWS_OF_FREE, True), _ROWS_OF_FREE),
        time=time,
        alpha=bits_of(alpha),
    )


def _plain_free_backward(time, alpha, arguments, d_outputs):
    return plain_gradients.of_free_response(
        varying_response, time, alpha, arguments, d_outputs
    )


_free_response = twice_differentiable(
    _free_forward,
    _remember_free,
    _free_backward,
    _plain_free_backward,
    settings=2,
)

_ROWS_OF_FINAL = *[False] * 7, *[True] * 3
_LENGTHS = 7


def _final_forward(alpha, *arguments):
    return call(
        "keras_linrec_final_states",
        like(arguments[-1]),
        arguments,
        rows=(_ROWS_OF_FINAL, True),
        alpha=bits_of(alpha),
    )


def _remember_final(alpha, *arguments):
    return _final_states(alpha, *arguments), arguments


def _final_backward(alpha, arguments, d_states):
    differentiated = *arguments[:_LENGTHS], *arguments[_LENGTHS + 1 :]
    *gradients, d_inputs, d_state = call(
        "keras_linrec_final_states_backward",
        like(differentiated),
        (arguments, d_states),
        rows=((_ROWS_OF_FINAL, True), (*_ROWS_OF_FREE, True)),
        alpha=bits_of(alpha),
    )
    of_lengths = jax.numpy.zeros_like(arguments[_LENGTHS])
    return *gradients, of_lengths, d_inputs, d_state


def _plain_final_backward(alpha, arguments, d_states):
    return plain_gradients.of_final_states(
        varying_response, alpha, arguments, d_states
    )


_final_states = twice_differentiable(
    _final_forward, _remember_final, _final_backward, _plain_final_backward
)
