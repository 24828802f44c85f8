"""Selecting, moving and masking time steps in batches of sequences."""

from keras import ops

from keras_linrec.kernels.operations.gathers import order as order
from keras_linrec.kernels.operations.gathers import take as take
from keras_linrec.kernels.resets import of_adjoint
from keras_linrec.kernels.resets import segment_ids as segment_ids


def lengths(mask):
    """The numbers of unmasked steps of each row, (batch,)."""
    return ops.sum(ops.cast(mask, "int32"), axis=1)


def full_lengths(sequences):
    """The number of steps of each row, all of them, (batch,)."""
    batch, time = ops.shape(sequences)[:2]
    return ops.full((batch,), time, dtype="int32")


def resets_of(segments, lengths):
    """The resets (batch, time) between segments, within the first `lengths`.

    Args:
        segments: integers (batch, time), from `segment_ids`.
        lengths: integers (batch,).
    """
    earlier = ops.zeros_like(segments[:, :1])
    earlier = ops.concatenate([earlier, segments[:, :-1]], axis=1)
    return (segments != earlier) & mask_of_lengths(
        lengths, ops.shape(segments)[1]
    )


def moved_resets(resets, lengths, order):
    """The resets after unmasked steps have moved to the front of each row.

    Args:
        resets: boolean, (batch, time).
        lengths: integers (batch,), the number of unmasked steps in each row.
        order: integers (batch, time), from `order`.
    """
    return resets_of(take(segment_ids(resets), order), lengths)


def mask_of_lengths(lengths, time):
    """A boolean mask (batch, time) of the first `lengths` steps of each row."""
    return (
        ops.arange(0, time, dtype="int32")[None]
        < (ops.cast(lengths, "int32")[:, None])
    )


def marks_of_steps(inputs, lengths, resets):
    """Which steps count, and which drop the states, for a loop over time.

    Args:
        inputs: (batch, time, ...).
        lengths: integers (batch,), or `None` if every row is full.
        resets: boolean, (batch, time), or `None` if there are none.

    Returns:
        `(runs, resets)`, booleans (batch, time).
    """
    shape = ops.shape(inputs)[:2]
    if resets is None:
        resets = ops.zeros(shape, "bool")
    if lengths is None:
        return ops.ones(shape, "bool"), resets
    return mask_of_lengths(lengths, shape[1]), resets


def backward_resets(resets):
    """The resets of a recurrence that runs from the last step to the first.

    The step before the beginning of one sequence is the last step of another,
    which the reversed recurrence reads first.
    """
    return of_adjoint(resets, reverse=False)


def hold_after(decay, lengths, time):
    """Set a complex decay (channels,) to 1 after `lengths` steps of each row.

    Returns:
        A pair of tensors (batch, time, channels).
    """
    runs = ops.expand_dims(mask_of_lengths(lengths, time), -1)
    real, imag = decay
    return ops.where(runs, real, 1.0), ops.where(runs, imag, 0.0)


def last(outputs, mask):
    """The last unmasked step of each row, (batch, features), or zeros.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps.
    """
    steps_back = ops.argmax(ops.cast(ops.flip(mask, axis=1), "int32"), axis=1)
    index = ops.shape(mask)[1] - 1 - ops.cast(steps_back, "int32")
    return _picked(outputs, mask, index)


def first(outputs, mask):
    """The first unmasked step of each row, (batch, features), or zeros.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps.
    """
    index = ops.argmax(ops.cast(mask, "int32"), axis=1)
    return _picked(outputs, mask, ops.cast(index, "int32"))


def _picked(outputs, mask, index):
    outputs = take(outputs, index[:, None])[:, 0]
    return ops.where(ops.any(mask, axis=1, keepdims=True), outputs, 0.0)


def mean(outputs, mask):
    """The mean over the unmasked steps of each row, (batch, features).

    It is zero in a row that is masked throughout.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps.
    """
    total = ops.sum(zero_masked(outputs, mask), axis=1)
    counts = ops.sum(ops.cast(mask, outputs.dtype), axis=1)[:, None]
    return total / ops.where(counts > 0, counts, 1.0)


def max_pool(outputs, mask):
    """The maximum over the unmasked steps of each row, (batch, features).

    It is zero in a row that is masked throughout.

    Args:
        outputs: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps.
    """
    outputs = ops.where(ops.expand_dims(mask, -1), outputs, float("-inf"))
    outputs = ops.amax(outputs, axis=1)
    return ops.where(ops.any(mask, axis=1, keepdims=True), outputs, 0.0)


def zero_masked(sequences, mask):
    """(batch, time, ...), with zeros at masked steps: no NaN is left."""
    mask = ops.cast(mask, "bool")
    for _ in sequences.shape[2:]:
        mask = ops.expand_dims(mask, -1)
    return ops.where(mask, sequences, 0.0)


def where_rows(rows, one, other):
    """`one` in the rows (batch,) or (batch, 1) that are true, else `other`.

    Args:
        rows: boolean tensor.
        one: tensor (batch, ...), or a number.
        other: tensor (batch, ...).
    """
    shape = (-1,) + (1,) * (len(other.shape) - 1)
    return ops.where(ops.reshape(rows, shape), one, other)
