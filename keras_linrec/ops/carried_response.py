"""The response of systems to inputs and states before them, and states after.

The native kernel computes it; `transition_powers` and `packed_response` do
elsewhere.
"""

from keras import ops

from keras_linrec.ops.dispatch import kernel_for


def carried_kernel(inputs, state_size):
    """The kernel that `carried_response` takes, or `None` if none runs here.

    Args:
        inputs: tensor (batch, time, features), u.
        state_size: integer, N.
    """
    return kernel_for("carried_response", inputs, channels=state_size)


def carried_response(
    kernel,
    transition,
    timescale,
    output_matrix,
    lengths,
    resets,
    inputs,
    states,
    alpha,
):
    """The outputs C x_t, and the states after `lengths` steps of each row.

    Args:
        kernel: the result of `carried_kernel`.
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        lengths: integer tensor (batch,). Outputs behind them are zero. `None`
            for all steps.
        resets: boolean (batch, time), true where x is zero before the step.
            `None` for nowhere.
        inputs: tensor (batch, time, features), u.
        states: tensor (batch, features, N), x before the first step.
        alpha: float, the parameter of the bilinear transform.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    batch, time, _ = ops.shape(inputs)
    dtype = inputs.dtype
    if lengths is None:
        # Exact in float32 up to 16 million steps.
        lengths = ops.full((batch,), time)
    if resets is None:
        resets = ops.zeros((batch, time), dtype)
    return kernel(
        *transition,
        timescale,
        output_matrix,
        ops.cast(lengths, dtype),
        ops.cast(resets, dtype),
        inputs,
        states,
        alpha,
    )
