"""Picking time steps of a batch of sequences."""

from keras import ops


def take(sequences, index):
    """Steps `index` of each row: (batch, time, ...) at (batch, count)."""
    shape = ops.shape(sequences)
    if 0 in sequences.shape[:2]:
        # JAX takes nothing out of no rows.
        return ops.zeros(
            (*ops.shape(index), *sequences.shape[2:]), sequences.dtype
        )
    rows = ops.arange(shape[0], dtype="int32")[:, None] * shape[1]
    flat = ops.reshape(sequences, (shape[0] * shape[1], *sequences.shape[2:]))
    return ops.take(flat, rows + ops.cast(index, "int32"), axis=0)


def pack(sequences, lengths, order):
    """The steps that count moved to the front of each row, zeros behind.

    Args:
        sequences: (batch, time, features), or (batch, time).
        lengths: integers (batch,), how many steps of each row count.
        order: integers (batch, time), from `order`.
    """
    counts = before(lengths, ops.shape(sequences)[1])
    if len(sequences.shape) == 3:
        counts = ops.expand_dims(counts, -1)
    return ops.where(counts, take(sequences, order), 0.0)


def order(mask):
    """The steps of each row, (batch, time): first those where it is true."""
    time = ops.shape(mask)[1]
    step = ops.arange(time, dtype="int32")
    # Distinct keys, so that the order does not hang on how ties are sorted.
    return ops.argsort(ops.where(mask, step, step + time), axis=1)


def to_front(mask):
    """How the steps that count move to the front of each row, and back.

    Args:
        mask: boolean, (batch, time), true where a step counts.

    Returns:
        `(position, lengths, order)`: where each step goes, one that does not
        count with the last before it that does, -1 where there is none; how
        many count; and what `order` gives.
    """
    position = ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1
    return position, position[:, -1] + 1, order(mask)


def segment_ids(resets):
    """How many sequences have begun by each step behind the first's."""
    return ops.cumsum(ops.cast(resets, "int32"), axis=1)


def changes(segments, lengths):
    """The resets of the first steps, by which so many sequences have begun."""
    earlier = ops.zeros_like(segments[:, :1])
    earlier = ops.concatenate([earlier, segments[:, :-1]], axis=1)
    return (segments != earlier) & before(lengths, ops.shape(segments)[1])


def moved_resets(resets, lengths, order):
    """The resets of steps that were moved to the front of each row.

    Args:
        resets: boolean, (batch, time).
        lengths: integers (batch,), how many steps of each row count.
        order: integers (batch, time), from `order`.
    """
    return changes(take(segment_ids(resets), order), lengths)


def before(lengths, time):
    """Which steps each row has: boolean (batch, time), the first ones true."""
    return (
        ops.arange(time, dtype="int32")[None]
        < (ops.cast(lengths, "int32")[:, None])
    )


def restart(decay, resets):
    """A decay that is zero where a recurrence is to start anew.

    Args:
        decay: tuple of tensors (channels,) or (batch, time, channels).
        resets: boolean, (batch, time).

    Returns:
        A tuple of tensors (batch, time, channels).
    """
    resets = ops.expand_dims(resets, -1)
    return tuple(ops.where(resets, 0.0, part) for part in decay)


def backward_resets(resets):
    """Where a recurrence that runs from the last step to the first restarts.

    The step before one at which a sequence begins is the last of another, and
    so the first that is read of that.
    """
    nowhere = ops.zeros_like(resets[:, :1])
    return ops.concatenate([resets[:, 1:], nowhere], axis=1)


def stop(decay, lengths, time):
    """A complex decay (channels,) that is 1 after so many steps of each row.

    Returns:
        A pair of tensors (batch, time, channels).
    """
    runs = before(lengths, time)[:, :, None]
    real, imag = decay
    return ops.where(runs, real, 1.0), ops.where(runs, imag, 0.0)


def last(outputs, mask):
    """The last step that counts of each row, (batch, features); else zeros.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts.
    """
    steps_back = ops.argmax(ops.cast(ops.flip(mask, axis=1), "int32"), axis=1)
    index = ops.shape(mask)[1] - 1 - ops.cast(steps_back, "int32")
    return _picked(outputs, mask, index)


def first(outputs, mask):
    """The first step that counts of each row, (batch, features); else zeros.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts.
    """
    index = ops.argmax(ops.cast(mask, "int32"), axis=1)
    return _picked(outputs, mask, ops.cast(index, "int32"))


def _picked(outputs, mask, index):
    outputs = take(outputs, index[:, None])[:, 0]
    return ops.where(ops.any(mask, axis=1)[:, None], outputs, 0.0)


def mean(outputs, mask):
    """The mean of the steps that count of each row, (batch, features).

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts.
    """
    total = ops.sum(ops.where(mask[:, :, None], outputs, 0.0), axis=1)
    counts = ops.sum(ops.cast(mask, outputs.dtype), axis=1)[:, None]
    return total / ops.where(counts > 0, counts, 1.0)


def max_pool(outputs, mask):
    """Each feature's largest at the steps that count, (batch, features).

    Zeros in a row where none does.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts.
    """
    outputs = ops.where(mask[:, :, None], outputs, float("-inf"))
    outputs = ops.max(outputs, axis=1)
    return ops.where(ops.any(mask, axis=1)[:, None], outputs, 0.0)
