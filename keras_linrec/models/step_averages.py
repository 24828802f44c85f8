"""Averages of `size` steps at a time, which shorten a sequence.

Steps that do not count are left out before the others are divided into
windows, so that a masked sequence gives what it gives without its masked
steps. What is left at the end and does not fill a window is dropped: a stream
has not finished it.

The states of a stream are the sum over the window that is not full yet,
(batch, features), and the number of its steps, (batch, 1).
"""

from keras import ops

from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.moves import to_front
from keras_linrec.ops.precision import accumulation_dtype


def initial_states(batch_size, features, dtype):
    """The states before the first step."""
    return [
        ops.zeros((batch_size, width), dtype=dtype) for width in (features, 1)
    ]


def length_after(time, size):
    """How many averages `average_steps` returns for so many steps.

    Args:
        time: integer, scalar tensor, or `None` for an unknown length.
        size: integer, the number of steps in a window.
    """
    if time is None:
        return None
    count = time // size
    return max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)


def average_steps(sequences, size, mask=None):
    """Average whole sequences.

    Args:
        sequences: (batch, time, features).
        size: integer, the number of steps in a window.
        mask: boolean, (batch, time), true where a step counts, or `None`.

    Returns:
        `(averages, mask)`: the averages, (batch, time // size, features); if
        there are fewer than `size` steps, a single one, which does not count.
        The mask is true where an average counts, (batch, time // size), or
        `None` if all do.
    """
    time = sequences.shape[1]
    count = length_after(ops.shape(sequences)[1], size)
    if mask is None and time is not None and time >= size:
        return _averages(sequences[:, : count * size], count, size), None
    if mask is None:
        mask = ops.ones(ops.shape(sequences)[:2], dtype="bool")
    lengths = packing.lengths(mask)
    packed = to_front(sequences, mask)
    # Zeros for a window that too few steps do not fill.
    packed = ops.pad(packed, [[0, 0], [0, size - 1], [0, 0]])
    averages = _averages(packed[:, : count * size], count, size)
    return averages, packing.mask_of_lengths(lengths // size, count)


def average_part(sequences, size, states, mask=None):
    """Average a part of a stream.

    Args:
        sequences: (batch, time, features).
        size: integer, the number of steps in a window.
        states: those before the part.
        mask: boolean, (batch, time), true where a step counts, or `None`.

    Returns:
        `(averages, mask, states)`: as many averages as any row may finish,
        and which of them each row does finish.
    """
    total, count = states
    if mask is None:
        mask = ops.ones(ops.shape(sequences)[:2], dtype="bool")
    time = ops.shape(sequences)[1]
    seen = ops.cast(count, "int32")
    mask = ops.cast(mask, "bool")
    lengths = packing.lengths(mask)
    # The row's steps come after those of its unfinished window.
    windows = (time + size - 1) // size
    place = ops.arange(0, (windows + 1) * size, dtype="int32")[None] - seen
    counts = (place >= 0) & (place < lengths[:, None])
    order = packing.take(packing.order(mask), ops.clip(place, 0, time - 1))
    values = ops.where(
        ops.expand_dims(counts, -1), packing.take(sequences, order), 0.0
    )
    sums = _window_sums(values, windows + 1, size)
    is_first = ops.arange(0, windows + 1, dtype="int32")[None, :, None] == 0
    sums = sums + ops.where(is_first, ops.expand_dims(total, 1), 0.0)
    finished = (seen[:, 0] + lengths) // size
    averages = ops.cast(sums[:, :windows] / size, sequences.dtype)
    remaining = ops.expand_dims(seen[:, 0] + lengths - finished * size, -1)
    return (
        averages,
        packing.mask_of_lengths(finished, windows),
        [
            packing.take(sums, finished[:, None])[:, 0],
            ops.cast(remaining, count.dtype),
        ],
    )


def average_step(inputs, size, states, counts=None):
    """Average one more step of a stream.

    Args:
        inputs: (batch, features).
        size: integer, the number of steps in a window.
        states: those before the step.
        counts: boolean, (batch, 1), the rows in which there is a step, or
            `None`: all.

    Returns:
        `(averages, counts, states)`: the averages, and the rows in which this
        step has finished one.
    """
    total = states[0] + ops.cast(inputs, states[0].dtype)
    count = states[1] + 1
    is_full = count >= size
    averages = ops.cast(total / size, inputs.dtype)
    new_states = [ops.where(is_full, 0.0, part) for part in (total, count)]
    if counts is None:
        return averages, is_full, new_states
    return averages, is_full & counts, where_rows(counts, new_states, states)


def finished_by(count, size, steps):
    """How many windows are finished by each of a part's steps.

    Args:
        count: (batch, 1), the steps of the unfinished window before the part.
        size: integer, the number of steps in a window.
        steps: integers, (batch, time), how many steps of the part count by
            then.
    """
    return (ops.cast(count, "int32") + steps) // size


def where_rows(rows, states, others):
    """`states` in the rows (batch, 1) that are true, else `others`."""
    return [packing.where_rows(rows, *pair) for pair in zip(states, others)]


def _averages(sequences, count, size):
    sums = _window_sums(sequences, count, size)
    return ops.cast(sums / size, sequences.dtype)


def _window_sums(sequences, count, size):
    """Sums in float32 over (batch, count * size, features)."""
    sequences = ops.cast(sequences, accumulation_dtype(sequences))
    shape = (ops.shape(sequences)[0], count, size, sequences.shape[-1])
    return ops.sum(ops.reshape(sequences, shape), axis=2)
