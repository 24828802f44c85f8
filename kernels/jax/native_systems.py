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
from keras_linrec.kernels.native.call_shapes import carried_shapes
from keras_linrec.kernels.native.call_shapes import response_shapes
from keras_linrec.kernels.native.call_shapes import varying_checkpoint_shape
from keras_linrec.kernels.native.call_shapes import varying_shapes
from keras_linrec.kernels.wanted import response_gradients


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.operations.impulse_response`."""
    arguments = p, d, q, t, b, timescale, output_matrix
    require_call_shapes(
        "impulse_response",
        ["arguments"],
        [arguments],
        [response_shapes(*output_matrix.shape)],
    )
    return _impulse_response(time, float(alpha), arguments)


def varying_response(*arguments):
    """See `keras_linrec.kernels.operations.varying_response`."""
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


def carried_response(*arguments):
    """See `keras_linrec.kernels.operations.carried_response`."""
    *arguments, alpha = arguments
    output_matrix, inputs = arguments[6], arguments[9]
    require_call_shapes(
        "carried_response",
        ["arguments"],
        [arguments],
        [carried_shapes(*inputs.shape, *output_matrix.shape[1:])],
    )
    return _carried_response(float(alpha), *arguments)


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


# The response with states before and after it.

_LENGTHS = 7


def _without_places(arguments):
    """The arguments but the lengths and resets."""
    return *arguments[:_LENGTHS], *arguments[_LENGTHS + 2 :]


def _carried_forward(alpha, *arguments):
    output_matrix, inputs, state = arguments[6], *arguments[-2:]
    outputs = *inputs.shape, output_matrix.shape[1]
    return call(
        "keras_linrec_carried_response",
        (jax.ShapeDtypeStruct(outputs, inputs.dtype), like(state)),
        arguments,
        rows=(_ROWS_OF_VARYING, True),
        alpha=bits_of(alpha),
    )


def _remember_carried(alpha, *arguments):
    return _carried_response(alpha, *arguments), arguments


def _carried_backward(alpha, arguments, cotangents):
    *gradients, d_inputs, d_state = call(
        "keras_linrec_carried_response_backward",
        like(_without_places(arguments)),
        (arguments, cotangents),
        rows=(
            (_ROWS_OF_VARYING, True),
            _without_places(_ROWS_OF_VARYING),
        ),
        alpha=bits_of(alpha),
    )
    no_gradients = map(jax.numpy.zeros_like, arguments[_LENGTHS:-2])
    return *gradients, *no_gradients, d_inputs, d_state


def _plain_carried_backward(alpha, arguments, cotangents):
    return plain_gradients.of_carried_response(
        varying_response, alpha, arguments, cotangents
    )


_carried_response = twice_differentiable(
    _carried_forward,
    _remember_carried,
    _carried_backward,
    _plain_carried_backward,
)
