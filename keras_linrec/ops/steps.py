"""The time steps of a batch of sequences, with all that belongs to each."""

from contextlib import nullcontext
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.ops import packing
from keras_linrec.ops.moves import to_front
from keras_linrec.ops.moves import to_places
from keras_linrec.validation import check_mask
from keras_linrec.validation import check_time_deltas


class Steps(NamedTuple):
    """The time steps of a batch of sequences.

    Attributes:
        sequences: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps; or `None` if no
            step is masked.
        resets: boolean, (batch, time), true where a new sequence begins; or
            `None` if a row holds a single sequence.
        time_deltas: (batch, time), the durations of the steps; or `None` if
            all are 1.
    """

    sequences: object
    mask: object = None
    resets: object = None
    time_deltas: object = None

    def by_name(self):
        """The resets and `time_deltas` that are given, by name."""
        parts = {"resets": self.resets, "time_deltas": self.time_deltas}
        return {name: part for name, part in parts.items() if part is not None}

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


def packed(steps):
    """The unmasked steps of each row at its front, in their order.

    Args:
        steps: `Steps` with a mask of any dtype, whose resets may be too.

    Returns:
        `(mask, packed)`: the mask as booleans, with which `moves.to_places`
        takes steps back, and `Steps` whose masked steps are the last of each
        row and zero, whatever they were.
    """
    sequences, mask, resets, time_deltas = steps
    check_mask("mask", mask, sequences)
    mask = ops.cast(mask, "bool")
    lengths = packing.lengths(mask)
    if resets is not None:
        check_mask("reset_mask", resets, sequences)
        resets = packing.moved_resets(resets, lengths, packing.order(mask))
    if time_deltas is not None:
        check_time_deltas(time_deltas.shape, sequences.shape[:2])
        time_deltas = to_front(ops.convert_to_tensor(time_deltas), mask)
    return mask, Steps(
        to_front(sequences, mask),
        packing.mask_of_lengths(lengths, ops.shape(mask)[1]),
        resets,
        time_deltas,
    )


def run_masked(run, steps, keep_all, zero_output, reset_states=None):
    """Run a recurrence on the unmasked steps only.

    The recurrence skips masked steps: the unmasked steps of each row are
    moved to the front, and the outputs back to their places. This works for
    any mask, and the padding at the end of a row cannot affect an output.

    Args:
        run: function of `Steps` without a mask and of the number of unmasked
            steps in each row, (batch,); returns `(outputs, final_states)`.
            Beyond the unmasked steps, sequences and `time_deltas` are zero.
            The states may be `None`.
        steps: `Steps` with a mask.
        keep_all: boolean, whether to return the outputs of all steps, or of
            the last.
        zero_output: boolean, whether outputs at masked steps are zero instead
            of repeating the previous output.
        reset_states: list of the states after a reset. Defaults to `None`:
            zeros.

    Returns:
        `(outputs, final_states)`, as `run` does.
    """
    sequences, mask, resets, time_deltas = steps
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    lengths = counts[:, -1]
    moved = Steps(to_front(sequences, mask))
    if time_deltas is not None:
        moved = moved._replace(time_deltas=to_front(time_deltas, mask))
    happened = counts > 0
    if resets is not None:
        segments = packing.segment_ids(resets)
        packed_segments = packing.take(segments, packing.order(mask))
        moved = moved._replace(
            resets=packing.resets_of(packed_segments, lengths)
        )
        position = ops.maximum(counts - 1, 0)
        # Whether there was an unmasked step since the last reset.
        happened = happened & (
            packing.take(packed_segments, position) == segments
        )
    outputs, final_states = run(moved, lengths)
    if resets is not None and final_states is not None:
        is_over = ~happened[:, -1] & (segments[:, -1] > 0)
        reset_states = reset_states or [0.0] * len(final_states)
        final_states = [
            packing.where_rows(is_over, *pair)
            for pair in zip(reset_states, final_states)
        ]
    if not keep_all:
        last = ops.maximum(lengths - 1, 0)[:, None]
        counts = mask[:, -1:] if zero_output else happened[:, -1:]
        outputs = packing.take(outputs, last)[:, 0]
        return ops.where(counts, outputs, 0.0), final_states
    outputs = to_places(outputs, mask, repeats=not zero_output)
    if resets is not None and not zero_output:
        outputs = packing.zero_masked(outputs, happened)
    return outputs, final_states


def run_again(run, steps, states, variables=()):
    """`run(steps, states)`, recomputed for the gradient.

    Args:
        run: function of `Steps` and states.
        steps: `Steps`.
        states: list of tensors, or `None`.
        variables: those that are read now, and not anew when `run` is
            recomputed. A program of TensorFlow may have updated them by then.
    """

    # `keras.remat` takes a function of tensors, none of them `None`. Masks and
    # resets have no gradient and need not be among them.
    def run_of_tensors(sequences, *others):
        values, others = others[: len(variables)], others[len(variables) :]
        given = steps._replace(sequences=sequences)
        if steps.time_deltas is not None:
            time_deltas, *others = others
            given = given._replace(time_deltas=time_deltas)
        replaced = list(zip(variables, values))
        with keras.StatelessScope(replaced) if replaced else nullcontext():
            outputs, final_states = run(given, list(others) or None)
        return outputs, *(final_states or ())

    tensors = [steps.sequences, *(variable.value for variable in variables)]
    if steps.time_deltas is not None:
        tensors.append(steps.time_deltas)
    tensors += states or ()
    outputs, *final_states = keras.remat(run_of_tensors)(*tensors)
    return outputs, final_states
