"""Outputs of systems that start anew at some steps of a sequence.

A convolution knows no such steps. Here chunks of few steps are convolved with
what of them belongs to the same sequence, and the states between the chunks
follow from one another in the logarithm of their number of products.
"""

import numpy as np
from keras import ops

from keras_linrec.ops import packing
from keras_linrec.ops.transition_powers import TransitionPowers
from keras_linrec.ops.transition_powers import advanced

# Inputs are held so many times, and the states of as few steps as this says.
_SIZE = 32


def packed_powers(transition_minus_identity, time):
    """The `TransitionPowers` that `packed_response` takes.

    Args:
        transition_minus_identity: tensor (features, N, N), Abar - I.
        time: the number of steps, an integer or a tensor.
    """
    return TransitionPowers(transition_minus_identity, time, _SIZE)


def packed_response(
    powers, input_vector, output_matrix, inputs, states, resets, lengths
):
    """C x_t, and the states after some of the steps.

    Args:
        powers: what `packed_powers` gives.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.
        inputs: tensor (batch, time, features).
        states: tensor (batch, features, N), x before the first step.
        resets: boolean (batch, time), true where x is zero before a step.
        lengths: integer tensor (batch,), the steps after which the states
            are wanted.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    # Two steps belong together if as many sequences have begun by them.
    segment_ids = packing.segment_ids(resets)
    missing = powers.count * powers.size - powers.time
    inputs = ops.pad(inputs, [[0, 0], [0, missing], [0, 0]])
    # Behind the last step nothing begins.
    padded = ops.concatenate(
        [segment_ids, ops.repeat(segment_ids[:, -1:], missing, axis=1)], axis=1
    )
    batch, features = ops.shape(inputs)[0], inputs.shape[2]
    by_chunk = (batch, powers.count, powers.size)
    within = ops.reshape(padded, by_chunk)
    by_chunk = ops.reshape(inputs, (*by_chunk, features))
    first = ops.zeros_like(within[:, :1, -1])
    between = ops.concatenate([first, within[:, :, -1]], axis=1)

    columns = powers.columns(input_vector)
    entering = _entering_states(
        powers, columns, by_chunk, within, between, states
    )
    outputs = _own_response(columns, output_matrix, by_chunk, within)
    outputs = outputs + _free_response(
        powers, output_matrix, entering, within, between
    )
    shape = (batch, powers.count * powers.size, *output_matrix.shape[:2])
    outputs = ops.reshape(outputs, shape)[:, : powers.time]
    return outputs, _states_after(
        powers, columns, inputs, padded, entering, between, lengths
    )


def _entering_states(powers, columns, inputs, within, between, states):
    """The states before each chunk and behind the last.

    Returns:
        A tensor (count + 1, batch, features, N).
    """
    last = ops.expand_dims(within == within[:, :, -1:], -1)
    added = ops.einsum(
        "fni,bmif->mbfn",
        ops.flip(columns, axis=-1),
        ops.where(last, inputs, 0.0),
    )
    sums = ops.concatenate([states[None], added], axis=0)
    between = ops.transpose(between)
    place = ops.arange(ops.shape(between)[0], dtype="int32")
    # sums_j has what came in by the 2^k places up to j, and what is still
    # alive of as many before them joins it.
    for power, delta in enumerate(powers.inter_chunk):
        earlier = ops.maximum(place - 2**power, 0)
        alive = between == ops.take(between, earlier, axis=0)
        alive = alive & (place >= 2**power)[:, None]
        joining = advanced(delta, ops.take(sums, earlier, axis=0))
        sums = sums + ops.where(alive[:, :, None, None], joining, 0.0)
    return sums


def _own_response(columns, output_matrix, inputs, within):
    """What the inputs of a chunk do to its outputs.

    Returns:
        A tensor (batch, chunks, size, features, channels).
    """
    response = ops.einsum("fcn,fni->fci", output_matrix, columns)
    size = columns.shape[-1]
    source = np.arange(size)[:, None] - np.arange(size)
    earlier = np.maximum(source, 0).astype("int32")
    together = ops.take(within, earlier, axis=2) == within[..., None]
    together = together & ops.convert_to_tensor(source >= 0)
    windows = ops.where(
        together[..., None], ops.take(inputs, earlier, axis=2), 0.0
    )
    return ops.einsum("fci,bmrif->bmrfc", response, windows)


def _free_response(powers, output_matrix, entering, within, between):
    """What the states before a chunk do to its outputs, likewise."""
    rows = output_matrix[None]
    rows = rows + ops.einsum(
        "jfcn,fnk->jfck", rows, powers.transition_minus_identity
    )
    for delta in powers.intra_chunk:
        more = rows + ops.einsum("jfcn,fnk->jfck", rows, delta)
        rows = ops.concatenate([rows, more], axis=0)
    response = ops.einsum("rfcn,mbfn->bmrfc", rows, entering[:-1])
    alive = within == between[:, :-1, None]
    return ops.where(alive[..., None, None], response, 0.0)


def _states_after(
    powers, columns, inputs, segment_ids, entering, between, lengths
):
    """The states after `lengths` steps of each row, (batch, features, N)."""
    lengths = ops.cast(lengths, "int32")
    full = lengths // powers.size
    rest = lengths - full * powers.size
    last = packing.take(segment_ids, ops.maximum(lengths - 1, 0)[:, None])
    last = ops.where(lengths[:, None] > 0, last, 0)

    by_row = ops.transpose(entering, (1, 0, 2, 3))
    state = packing.take(by_row, full[:, None])[:, 0]
    alive = packing.take(between, full[:, None]) == last
    state = ops.where(alive[..., None], powers.apply(state, rest), 0.0)

    back = ops.arange(powers.size, dtype="int32")[None]
    source = ops.maximum(lengths[:, None] - 1 - back, 0)
    together = (packing.take(segment_ids, source) == last) & (
        back < rest[:, None]
    )
    recent = ops.where(together[..., None], packing.take(inputs, source), 0.0)
    return state + ops.einsum("fni,bif->bfn", columns, recent)
