"""The scan of systems with A = P (D + T^-1) Q."""

from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.masks import packing


def structured_scan(
    transition,
    timescale,
    output_matrix,
    lengths,
    resets,
    inputs,
    state,
    alpha,
    require_bounded,
):
    """The outputs C x_t, and the states after `lengths` steps of each row.

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        lengths: integer tensor (batch,), or `None` for all steps. Outputs
            behind them may be anything.
        resets: boolean (batch, time), true where x is zero before the step.
            `None` for nowhere.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step, or `None`:
            zeros.
        alpha: float, the parameter of the bilinear transform.
        require_bounded: function of a tensor, and of the tensors that its rows
            come from if it has rows. It returns the tensor, or complains if it
            grows beyond all bounds.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    if lengths is None:
        lengths = packing.full_lengths(inputs)
    run = kernel_for(
        "structured_scan",
        inputs,
        channels=output_matrix.shape[-1],
        resets=resets is not None,
    )
    return run(
        *transition,
        timescale,
        output_matrix,
        lengths,
        resets,
        inputs,
        state,
        alpha,
        require_bounded=require_bounded,
    )
