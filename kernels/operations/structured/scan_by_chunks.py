"""Outputs of state-space systems for packed sequences.

A plain convolution cannot reset the state between the sequences of a row. Here,
sequences are split into short chunks. Within a chunk, inputs are convolved with
a mask that keeps sequences apart; the states between chunks follow from a
parallel scan, with logarithmically many products.
"""

from keras import ops

from keras_linrec.kernels.full_precision import einsum
from keras_linrec.kernels.operations.gathers import take
from keras_linrec.kernels.operations.structured.discretization import (
    discretised,
)
from keras_linrec.kernels.operations.structured.powers import TransitionPowers
from keras_linrec.kernels.operations.structured.powers import advanced
from keras_linrec.kernels.operations.structured.systems import zero_state
from keras_linrec.kernels.resets import segment_ids

# Steps in a chunk. The inputs are stored this many times over, and the states
# once in this many steps.
_CHUNK = 32


def scan_by_chunks(
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
    """The scan with resets; see `ops/structured/scan.py`."""
    delta, input_vector = discretised(p, d, q, t, b, timescale, alpha)
    delta = require_bounded(delta)
    powers = TransitionPowers(delta, ops.shape(inputs)[1], _CHUNK)
    powers.inter_chunk[-1] = require_bounded(powers.inter_chunk[-1])
    if state is None:
        state = zero_state(inputs, output_matrix)
    return _packed_response(
        powers, input_vector, output_matrix, inputs, state, resets, lengths
    )


def _packed_response(
    powers, input_vector, output_matrix, inputs, states, resets, lengths
):
    """The outputs C x_t, and the states after `lengths` steps of each row."""
    ids = segment_ids(resets)
    missing = powers.count * powers.size - powers.time
    inputs = ops.pad(inputs, [[0, 0], [0, missing], [0, 0]])
    # The padding continues the last sequence.
    ids = ops.concatenate(
        [ids, ops.repeat(ids[:, -1:], missing, axis=1)], axis=1
    )
    batch, features = ops.shape(inputs)[0], inputs.shape[2]
    in_chunks = (batch, powers.count, powers.size)
    chunk_ids = ops.reshape(ids, in_chunks)
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
        powers, columns, inputs, ids, entering, state_ids, lengths
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
    place = ops.arange(0, ops.shape(state_ids)[0], dtype="int32")
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
    response = einsum("fcn,fni->fci", output_matrix, columns)
    size = columns.shape[-1]
    place = ops.arange(0, size, dtype="int32")
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
    rows = rows + einsum(
        "jfcn,fnk->jfck", rows, powers.transition_minus_identity
    )
    for delta in powers.intra_chunk:
        more = rows + einsum("jfcn,fnk->jfck", rows, delta)
        rows = ops.concatenate([rows, more], axis=0)
    response = ops.einsum("rfcn,mbfn->bmrfc", rows, entering[:-1])
    connected = chunk_ids == state_ids[:, :-1, None]
    return ops.where(connected[..., None, None], response, 0.0)


def _states_after(powers, columns, inputs, ids, entering, state_ids, lengths):
    """The states after `lengths` steps of each row, (batch, features, N)."""
    lengths = ops.cast(lengths, "int32")
    full = lengths // powers.size
    rest = lengths - full * powers.size
    last = take(ids, ops.maximum(lengths - 1, 0)[:, None])
    last = ops.where(lengths[:, None] > 0, last, 0)

    by_row = ops.transpose(entering, (1, 0, 2, 3))
    state = take(by_row, full[:, None])[:, 0]
    connected = take(state_ids, full[:, None]) == last
    state = ops.where(connected[..., None], powers.apply(state, rest), 0.0)

    back = ops.arange(0, powers.size, dtype="int32")[None]
    source = ops.maximum(lengths[:, None] - 1 - back, 0)
    connected = take(ids, source) == last
    connected = connected & (back < rest[:, None])
    recent = ops.where(connected[..., None], take(inputs, source), 0.0)
    return state + ops.einsum("fni,bif->bfn", columns, recent)
