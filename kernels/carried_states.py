"""The plain form of states that pass through a sequence.

It computes the same as the native kernels, as steps of which some have the
length zero. It gives them their second derivatives, and runs in their place in
programs that turn out to need portable code. Otherwise
`keras_linrec.ops.transition_powers` is the portable form, which is faster.
"""

from keras import ops


def free_response(
    varying, p, d, q, t, b, timescale, output_matrix, state, time, alpha
):
    """C Abar^(t + 1) x for t < time, of systems with A = P (D + T^-1) Q.

    Args:
        varying: `varying_response` of this package, without its first argument
            or native.
        p, d, q, t, b, timescale, output_matrix: see `varying_response`.
        state: tensor (batch, features, N), x before the first step.
        time: integer, the number of steps.
        alpha: float, of the generalised bilinear transform.

    Returns:
        A tensor (batch, time, features, channels).
    """
    batch, features, _ = ops.shape(state)
    steps = ops.ones((batch, time), state.dtype)
    inputs = ops.zeros((batch, time, features), state.dtype)
    system = p, d, q, t, b, timescale, output_matrix
    resets = ops.zeros_like(steps)
    return varying(*system, steps, resets, inputs, state, alpha)[0]


def final_states(
    varying,
    p,
    d,
    q,
    t,
    b,
    timescale,
    output_matrix,
    lengths,
    inputs,
    state,
    alpha,
):
    """The states after `lengths` steps, of systems with A = P (D + T^-1) Q.

    Args:
        varying: as in `free_response`.
        p, d, q, t, b, timescale, output_matrix: see `varying_response`. The
            output matrix has no effect.
        lengths: tensor (batch,) of the dtype of the others, whole numbers.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step.
        alpha: float, of the generalised bilinear transform.

    Returns:
        A tensor (batch, features, N).
    """
    place = ops.arange(ops.shape(inputs)[1], dtype=lengths.dtype)
    steps = ops.cast(place < ops.expand_dims(lengths, -1), inputs.dtype)
    system = p, d, q, t, b, timescale, output_matrix
    resets = ops.zeros_like(steps)
    return varying(*system, steps, resets, inputs, state, alpha)[1]
