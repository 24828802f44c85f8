"""Outputs of state-space systems for packed sequences.

A plain convolution cannot reset the state between the sequences of a row. Here,
sequences are split into short chunks. Within a chunk, inputs are convolved with
a mask that keeps sequences apart; the states between chunks follow from a
parallel scan, with logarithmically many products.
"""

from keras import ops

from keras_linrec.ops import packing
from keras_linrec.ops import precision
from keras_linrec.ops.transition_powers import TransitionPowers
from keras_linrec.ops.transition_powers import advanced

# Steps in a chunk. The inputs are stored this many times over, and the states
# once in this many steps.
_CHUNK = 32


def packed_powers(transition_minus_identity, time):
    """The `TransitionPowers` for `packed_response`.

    Args:
        transition_minus_identity: tensor (features, N, N), Abar - I.
        time: the number of steps, an integer or a tensor.
    """
    return TransitionPowers(transition_minus_identity, time, _CHUNK)


def packed_response(
    powers, input_vector, output_matrix, inputs, states, resets, lengths
):
    """The outputs C x_t, and the states after `lengths` steps of each row.

    Args:
        powers: the result of `packed_powers`.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.
        inputs: tensor (batch, time, features).
        states: tensor (batch, features, N), x before the first step.
        resets: boolean (batch, time), true where x is set to zero before the
            step.
        lengths: integer tensor (batch,), the step after which to return each
            row's states.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    segment_ids = packing.segment_ids(resets)
    missing = powers.count * powers.size - powers.time
    inputs = ops.pad(inputs, [[0, 0], [0, missing], [0, 0]])
    # The padding continues the last sequence.
    segment_ids = ops.concatenate(
        [segment_ids, ops.repeat(segment_ids[:, -1:], missing, axis=1)], axis=1
    )
    batch, features = ops.shape(inputs)[0], inputs.shape[2]
    in_chunks = (batch, powers.count, powers.size)
    chunk_ids = ops.reshape(segment_ids, in_chunks)
    chunks = ops.reshape(inputs, (*in_chunks, features))
    # The segment of the state before each chunk, and after the last.
    first = ops.zeros_like(chunk_ids[:, :1, -1])
    state_ids = ops.concatenate([first, chunk_ids[:, :, -1]], axis=1)

    columns = powers.columns(input_vector)
    entering = _entering_states(
        powers, columns, chunks, chunk_ids, state_ids, states
    )
    outputs = _forced_response(columns, output_matrix, chunks, chunk_ids)
    outputs = outputs + _free_response(
        powers, output_matrix, entering, chunk_ids, state_ids
    )
    shape = (batch, powers.count * powers.size, *output_matrix.shape[:2])
    outputs = ops.reshape(outputs, shape)[:, : powers.time]
    return outputs, _states_after(
        powers, columns, inputs, segment_ids, entering, state_ids, lengths
    )


def _entering_states(powers, columns, chunks, chunk_ids, state_ids, states):
    """The states before each chunk and after the last.

    Returns:
        A tensor (count + 1, batch, features, N).
    """
    last = ops.expand_dims(chunk_ids == chunk_ids[:, :, -1:], -1)
    added = ops.einsum(
        "fni,bmif->mbfn",
        ops.flip(columns, axis=-1),
        ops.where(last, chunks, 0.0),
    )
    sums = ops.concatenate([states[None], added], axis=0)
    state_ids = ops.transpose(state_ids)
    place = ops.arange(ops.shape(state_ids)[0], dtype="int32")
    # sums_j covers the last 2^k places up to j. Add the sum over the 2^k places
    # before them, unless a reset lies between.
    for power, delta in enumerate(powers.inter_chunk):
        earlier = ops.maximum(place - 2**power, 0)
        connected = state_ids == ops.take(state_ids, earlier, axis=0)
        connected = connected & (place >= 2**power)[:, None]
        joining = advanced(delta, ops.take(sums, earlier, axis=0))
        sums = sums + ops.where(connected[:, :, None, None], joining, 0.0)
    return sums


def _forced_response(columns, output_matrix, chunks, chunk_ids):
    """The response of each chunk's outputs to its own inputs.

    Returns:
        A tensor (batch, chunks, size, features, channels).
    """
    response = precision.einsum("fcn,fni->fci", output_matrix, columns)
    size = columns.shape[-1]
    place = ops.arange(size, dtype="int32")
    source = place[:, None] - place
    earlier = ops.maximum(source, 0)
    connected = ops.take(chunk_ids, earlier, axis=2) == chunk_ids[..., None]
    connected = connected & (source >= 0)
    windows = ops.where(
        connected[..., None], ops.take(chunks, earlier, axis=2), 0.0
    )
    return ops.einsum("fci,bmrif->bmrfc", response, windows)


def _free_response(powers, output_matrix, entering, chunk_ids, state_ids):
    """The response of each chunk's outputs to the state before the chunk."""
    rows = output_matrix[None]
    rows = rows + precision.einsum(
        "jfcn,fnk->jfck", rows, powers.transition_minus_identity
    )
    for delta in powers.intra_chunk:
        more = rows + precision.einsum("jfcn,fnk->jfck", rows, delta)
        rows = ops.concatenate([rows, more], axis=0)
    response = ops.einsum("rfcn,mbfn->bmrfc", rows, entering[:-1])
    connected = chunk_ids == state_ids[:, :-1, None]
    return ops.where(connected[..., None, None], response, 0.0)


def _states_after(
    powers, columns, inputs, segment_ids, entering, state_ids, lengths
):
    """The states after `lengths` steps of each row, (batch, features, N)."""
    lengths = ops.cast(lengths, "int32")
    full = lengths // powers.size
    rest = lengths - full * powers.size
    last = packing.take(segment_ids, ops.maximum(lengths - 1, 0)[:, None])
    last = ops.where(lengths[:, None] > 0, last, 0)

    by_row = ops.transpose(entering, (1, 0, 2, 3))
    state = packing.take(by_row, full[:, None])[:, 0]
    connected = packing.take(state_ids, full[:, None]) == last
    state = ops.where(connected[..., None], powers.apply(state, rest), 0.0)

    back = ops.arange(powers.size, dtype="int32")[None]
    source = ops.maximum(lengths[:, None] - 1 - back, 0)
    connected = packing.take(segment_ids, source) == last
    connected = connected & (back < rest[:, None])
    recent = ops.where(connected[..., None], packing.take(inputs, source), 0.0)
    return state + ops.einsum("fni,bif->bfn", columns, recent)
