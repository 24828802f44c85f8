"""Picking time steps of a batch of sequences."""

from keras import ops


def take(sequences, index):
    """Steps `index` of each row: (batch, time, ...) at (batch, count)."""
    shape = ops.shape(sequences)
    rows = ops.arange(shape[0], dtype="int32")[:, None] * shape[1]
    flat = ops.reshape(sequences, (shape[0] * shape[1], *sequences.shape[2:]))
    return ops.take(flat, rows + ops.cast(index, "int32"), axis=0)


def pack(sequences, mask):
    """The steps that count moved to the front of each row, zeros behind.

    Args:
        sequences: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts.
    """
    time = ops.shape(sequences)[1]
    step = ops.arange(time, dtype="int32")
    # Distinct keys, so that the order does not hang on how ties are sorted.
    order = ops.argsort(ops.where(mask, step, step + time), axis=1)
    lengths = ops.sum(ops.cast(mask, "int32"), axis=1)
    counts = step[None] < lengths[:, None]
    return ops.where(counts[:, :, None], take(sequences, order), 0.0)


def before(lengths, time):
    """Which steps each row has: boolean (batch, time), the first ones true."""
    return (
        ops.arange(time, dtype="int32")[None]
        < (ops.cast(lengths, "int32")[:, None])
    )


def stop(decay, lengths, time):
    """A complex decay (channels,) that is 1 after so many steps of each row.

    Returns:
        A pair of tensors (batch, time, channels).
    """
    runs = before(lengths, time)[:, :, None]
    real, imag = decay
    return ops.where(runs, real, 1.0), ops.where(runs, imag, 0.0)
