"""What a batch of sequences holds step by step, moved together."""

from typing import NamedTuple

from keras import ops

from keras_linrec.ops import packing


class Steps(NamedTuple):
    """What each step of a batch of sequences holds.

    Attributes:
        sequences: (batch, time, features).
        mask: boolean, (batch, time), true where a step counts, or `None`:
            all do.
        resets: boolean, (batch, time), true where a sequence begins, or
            `None`: only at the first step.
        time_deltas: (batch, time), how long a step lasts, or `None`: all 1.
    """

    sequences: object
    mask: object = None
    resets: object = None
    time_deltas: object = None

    def by_name(self):
        """What a recurrence takes beside the sequences, where it is there."""
        given = {"resets": self.resets, "time_deltas": self.time_deltas}
        return {name: part for name, part in given.items() if part is not None}

    def backward(self):
        """The steps from the last to the first."""
        resets = self.resets
        if resets is not None:
            resets = packing.backward_resets(resets)
        parts = self._replace(resets=resets)
        return Steps(
            *(
                None if part is None else ops.flip(part, axis=1)
                for part in parts
            )
        )


def run_masked(run, steps, keep_all, zero_output, reset_states=None):
    """Move the steps that count to the front, run, and spread back.

    To the recurrence a masked step does not happen. Without it, the steps
    that count follow one another, whatever the pattern of the mask, and what
    is left at the end of a row can no longer reach an output.

    Args:
        run: function of `Steps` without a mask and the number of steps of
            each row, (batch,), to `(outputs, final_states)`; of what is left
            behind those, sequences and `time_deltas` are zero. The states may
            be `None`.
        steps: `Steps` with a mask.
        keep_all: whether the outputs of all steps are wanted, or the last.
        zero_output: whether masked steps give zeros instead of repeating the
            previous output.
        reset_states: list of the states after a reset. Defaults to `None`,
            zeros.

    Returns:
        `(outputs, final_states)`, as `run` does.
    """
    sequences, mask, resets, time_deltas = steps
    position, lengths, order = packing.to_front(mask)
    packed = Steps(packing.pack(sequences, lengths, order))
    if time_deltas is not None:
        time_deltas = packing.pack(time_deltas, lengths, order)
        packed = packed._replace(time_deltas=time_deltas)
    if resets is not None:
        segments = packing.segment_ids(resets)
        packed_segments = packing.take(segments, order)
        resets = packing.changes(packed_segments, lengths)
        packed = packed._replace(resets=resets)
    outputs, final_states = run(packed, lengths)
    happened = position >= 0
    if resets is not None:
        of_position = packing.take(packed_segments, ops.maximum(position, 0))
        happened = happened & (of_position == segments)
        is_over = ~happened[:, -1] & (segments[:, -1] > 0)
        if final_states is not None:
            reset_states = reset_states or [0.0] * len(final_states)
            final_states = [
                _where(is_over, *pair)
                for pair in zip(reset_states, final_states)
            ]
    if not keep_all:
        mask, position, happened = (
            part[:, -1:] for part in (mask, position, happened)
        )
    outputs = packing.take(outputs, ops.maximum(position, 0))
    outputs = ops.where(happened[:, :, None], outputs, 0.0)
    if zero_output:
        outputs = ops.where(mask[:, :, None], outputs, 0.0)
    return outputs if keep_all else outputs[:, 0], final_states


def _where(rows, one, other):
    """States (batch, ...) from `one` in the rows where `rows` is true."""
    shape = (-1,) + (1,) * (len(other.shape) - 1)
    return ops.where(ops.reshape(rows, shape), one, other)
