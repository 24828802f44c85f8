"""The scan of structured systems by a convolution and powers."""

from keras import ops

from keras_linrec.kernels.operations.causal_convolution import (
    causal_convolution,
)
from keras_linrec.kernels.operations.gathers import take
from keras_linrec.kernels.operations.structured.discretization import (
    discretised,
)
from keras_linrec.kernels.operations.structured.powers import TransitionPowers
from keras_linrec.kernels.operations.structured.powers import advanced
from keras_linrec.kernels.operations.structured.powers import impulse_by_powers
from keras_linrec.kernels.operations.structured.systems import zero_state


def scan_by_powers(
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
    require_bounded,
):
    """The scan without resets; see `ops/structured/scan.py`."""
    delta, input_vector = discretised(p, d, q, t, b, timescale, alpha)
    powers = TransitionPowers(delta, ops.shape(inputs)[1])
    response = impulse_by_powers(powers, input_vector, output_matrix)
    outputs = causal_convolution(inputs, require_bounded(response))
    if state is None:
        state = zero_state(inputs, output_matrix)
    else:
        free = free_response(powers, state, output_matrix)
        outputs = outputs + ops.transpose(free, (0, 3, 1, 2))
    return outputs, final_states(powers, input_vector, inputs, state, lengths)


def free_response(powers, states, output_matrix):
    """C Abar^(k+1) x, the output at step k of a system without input.

    Args:
        powers: `TransitionPowers` of Abar.
        states: tensor (batch, features, N), x before the first step.
        output_matrix: tensor (features, channels, N).

    Returns:
        A tensor (batch, features, channels, time).
    """
    rows = powers.rows(output_matrix)
    first = advanced(powers.transition_minus_identity, states)
    response = ops.einsum("jfmn,bfni->bfmji", rows, powers.columns(first))
    shape = (*ops.shape(first)[:2], output_matrix.shape[1])
    response = ops.reshape(response, (*shape, powers.count * powers.size))
    return response[..., : powers.time]


def final_states(powers, input_vector, inputs, states, lengths):
    """The states after `lengths` steps of each row.

    Args:
        powers: `TransitionPowers` of Abar.
        input_vector: tensor (features, N), Bbar.
        inputs: tensor (batch, time, features).
        states: tensor (batch, features, N), x before the first step.
        lengths: integer tensor (batch,).

    Returns:
        A tensor (batch, features, N).
    """
    size, count = powers.size, powers.count
    lengths = ops.cast(lengths, "int32")
    # Align the rows at the end of the last chunk; the zeros before them leave
    # a state of zero unchanged.
    source = ops.arange(0, count * size, dtype="int32") - count * size
    source = source[None] + lengths[:, None]
    aligned = take(inputs, ops.maximum(source, 0))
    aligned = ops.where(source[:, :, None] >= 0, aligned, 0.0)
    batch, _, features = ops.shape(inputs)
    aligned = ops.reshape(aligned, (batch, count, size, features))
    columns = ops.flip(powers.columns(input_vector), axis=-1)
    additions = ops.einsum("fni,bjif->jbfn", columns, aligned)
    additions = ops.pad(additions, [[1, 0], [0, 0], [0, 0], [0, 0]])

    # The initial state first makes the steps that do not fill a chunk, and is
    # added after the chunk that contains them.
    full = lengths // size
    joining = powers.apply(states, lengths - full * size)
    place = ops.arange(0, count + 1, dtype="int32")[:, None]
    joins = (place == count - full)[:, :, None, None]
    return powers.fold(additions + ops.where(joins, joining, 0.0))
