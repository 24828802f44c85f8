"""The plain form of responses with states before and after them.

It computes the same as the native kernel, as steps of which some have the
length zero. It gives that kernel its second derivatives, and runs in its place
in programs that turn out to need portable code. Otherwise
`keras_linrec.ops.transition_powers` and `packed_response` are the portable
forms, which are faster.
"""

from keras import ops


def carried_response(
    varying,
    p,
    d,
    q,
    t,
    b,
    timescale,
    output_matrix,
    lengths,
    resets,
    inputs,
    state,
    alpha,
):
    """The outputs C x_t and final states, of systems with A = P (D + T^-1) Q.

    Args:
        varying: `varying_response` of this package, without its first argument
            or native.
        p, d, q, t, b, timescale, output_matrix: see `varying_response`.
        lengths: tensor (batch,) of the dtype of the others, whole numbers: the
            steps of each row. Outputs behind them are zero.
        resets: tensor (batch, time), see `varying_response`.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step.
        alpha: float, of the generalised bilinear transform.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    place = ops.arange(ops.shape(inputs)[1], dtype=lengths.dtype)
    is_step = place < ops.expand_dims(lengths, -1)
    steps = ops.cast(is_step, inputs.dtype)
    # Behind the lengths, resets would drop the final state.
    resets = resets * steps
    system = p, d, q, t, b, timescale, output_matrix
    outputs, final_state = varying(*system, steps, resets, inputs, state, alpha)
    return ops.where(is_step[:, :, None, None], outputs, 0.0), final_state
