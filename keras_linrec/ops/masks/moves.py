"""Unmasked steps at the front of each row, and back at their places."""

from keras import ops

from keras_linrec.ops.dispatch import kernel_for


def to_front(sequences, mask):
    """Move the unmasked steps of each row to its front, followed by zeros.

    What masked steps hold, NaN included, reaches neither the result nor a
    gradient. On a CPU a mask whose padding is at the end of each row costs one
    copy at most.

    Args:
        sequences: (batch, time, features), or (batch, time).
        mask: boolean, (batch, time), false at masked steps.
    """
    return _moved(sequences, mask, to_places=False, with_masked=False)


def to_places(sequences, mask, repeats=False):
    """Move steps from the front of each row to its unmasked places.

    Args:
        sequences: (batch, time, features), or (batch, time).
        mask: boolean, (batch, time), false at masked steps.
        repeats: whether masked steps repeat the unmasked step before them, if
            there is one, instead of being zero. Defaults to `False`.
    """
    return _moved(sequences, mask, to_places=True, with_masked=repeats)


def _moved(sequences, mask, to_places, with_masked):
    if len(sequences.shape) == 2:
        sequences = ops.expand_dims(sequences, -1)
        return ops.squeeze(_moved(sequences, mask, to_places, with_masked), -1)
    run = kernel_for("move_steps", sequences, channels=sequences.shape[-1])
    return run(sequences, mask, to_places, with_masked)
