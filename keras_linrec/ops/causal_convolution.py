"""Causal convolution of long sequences with long responses."""

from keras import ops

from keras_linrec.ops.scan import kernel_for


def causal_convolution(inputs, response):
    """The causal convolution of every feature with responses of its own.

        y[b, t, h, m] = sum_k response[h, m, k] inputs[b, t - k, h]

    with inputs of zero before the first step. It takes O(time log time)
    operations whatever the number of taps. On a CPU the native kernel runs,
    elsewhere the Fourier transforms of the framework.

    Args:
        inputs: float tensor, (batch, time, features), of at least one time
            step.
        response: float tensor of the same dtype, (features, channels, taps).
            Taps beyond the number of time steps have no effect.

    Returns:
        A tensor (batch, time, features, channels) of the same dtype.

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
    inputs = ops.convert_to_tensor(inputs)
    response = ops.convert_to_tensor(response)
    _check_shapes(inputs.shape, response.shape)
    time, taps = inputs.shape[1], response.shape[-1]
    if isinstance(time, int) and isinstance(taps, int) and taps > time:
        response = response[..., :time]
    run = kernel_for(
        "causal_convolution", inputs, channels=inputs.shape[-1], not_time=True
    )
    return run(inputs, response)


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
