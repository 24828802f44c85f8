"""Causal convolution of long sequences with long responses."""

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_tensors


@in_any_byte_order
def causal_convolution(
    inputs: types.Tensor,
    response: types.Tensor,
    activation: types.Identifier = None,
) -> types.Tensor:
    """The causal convolution of every feature with responses of its own.

        y[b, t, h, m] = activation(
            sum_k response[h, m, k] inputs[b, t - k, h])

    with inputs of zero before the first step. It takes O(time log time)
    operations whatever the number of taps. On a CPU the native kernel runs,
    elsewhere the Fourier transforms of the framework.

    An outlier leaves earlier outputs of its sequence as they were, to 1e-6 of
    the largest of them in float32. From a NaN or an infinity on, the outputs
    are NaN; earlier ones, and their gradients, are not affected.

    Args:
        inputs: float tensor, (batch, time, features), of at least one time
            step.
        response: float tensor, (features, channels, taps). Taps beyond the
            number of time steps have no effect.
        activation: a name that `keras_linrec.activations.get` accepts, or a
            function of a tensor. The native kernel computes `"gelu"` (the
            exact one), `"relu"`, `"leaky_relu"`, `"tanh"` and `"sigmoid"`
            together with the convolution. Defaults to `None`, the identity.

    Returns:
        A tensor (batch, time, features, channels), float32, or float64 if an
        argument is.

    Raises:
        ValueError: for shapes that do not fit.

    Example: a moving average.

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> inputs = np.array([[[1.0], [2.0], [3.0], [4.0]]], "float32")
    >>> response = np.full((1, 1, 2), 0.5, "float32")
    >>> outputs = ops.causal_convolution(inputs, response)
    >>> [round(float(value), 4) for value in outputs[0, :, 0, 0]]
    [0.5, 1.5, 2.5, 3.5]
    """
    require_tensors(inputs=inputs, response=response)
    dtype = accumulation_dtype(inputs, response)
    inputs, response = ops.cast(inputs, dtype), ops.cast(response, dtype)
    _check_shapes(inputs.shape, response.shape)
    time, taps = inputs.shape[1], response.shape[-1]
    are_known = isinstance(time, int) and isinstance(taps, int)
    if not are_known or taps > time:
        response = response[..., : ops.shape(inputs)[1]]
    run = kernel_for(
        "causal_convolution",
        inputs,
        channels=inputs.shape[-1],
    )
    activation = activations.get_unary(activation)
    known = activation_flags(activation)
    if known is None or activation in activations.OF_PAIRS:
        outputs = run(inputs, response, keras.activations.linear)
        return activate(activation, outputs)
    return run(inputs, response, activation)


def _check_shapes(inputs, response):
    if len(inputs) != 3 or inputs[1] == 0:
        raise ValueError(
            "`inputs` should have the shape (batch, time, features) with at "
            f"least one time step. Received: inputs.shape={tuple(inputs)}"
        )
    if len(response) != 3 or response[0] != inputs[2] or response[2] == 0:
        raise ValueError(
            "`response` should have the shape (features, channels, taps) with "
            f"{inputs[2]} features, as the inputs have, and at least one tap. "
            f"Received: response.shape={tuple(response)}"
        )
