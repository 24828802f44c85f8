"""What a call of a recurrent layer runs over, and what it wants of the results.

`Steps` travels as it is from the call of a layer to the operations.
"""

import numbers
from contextlib import nullcontext
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_linrec.ops.concrete_values import values_of
from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.moves import to_front
from keras_linrec.ops.masks.moves import to_places
from keras_linrec.validation import check_mask
from keras_linrec.validation import check_time_deltas
from keras_linrec.validation import first_mask
from keras_linrec.validation import require_array
from keras_linrec.validation import require_durations

_MASKS = ("mask", "reset_mask")
# What has a gradient.
_NUMBERS = ("inputs", "time_deltas")
_ALONG_TIME = (*_MASKS, *_NUMBERS)


class Wanted(NamedTuple):
    """What a call wants of the results.

    Attributes:
        all_outputs: whether the outputs of all steps, (batch, time, ...), and
            not of each row's last step alone, (batch, ...).
        states: whether the states after the last step. They may be `None`
            otherwise.
    """

    all_outputs: bool
    states: bool


class Steps(NamedTuple):
    """The time steps of a batch of sequences, with all that belongs to them.

    A single step of a stream is the same without the axis of time.

    Attributes:
        inputs: (batch, time, features).
        mask: boolean, (batch, time), false at masked steps; or `None` if no
            step is masked.
        reset_mask: boolean, (batch, time), true where a new sequence begins:
            the states are reset before that step; or `None` if a row holds a
            single sequence.
        time_deltas: (batch, time), the durations of the steps; or `None` if
            all are 1.
        lengths: integers (batch,), the number of steps of each row, behind
            which all is zero; or `None` if every row is full.
        options: dictionary, the arguments of the call that belong to no step.
    """

    inputs: object
    mask: object = None
    reset_mask: object = None
    time_deltas: object = None
    lengths: object = None
    options: dict = {}

    @classmethod
    def of_call(cls, inputs, **arguments):
        """The steps of a call with these arguments."""
        of_steps = {k: v for k, v in arguments.items() if k in _ALONG_TIME}
        options = {k: v for k, v in arguments.items() if k not in of_steps}
        return cls(inputs, **of_steps, options=options)

    def checked(self, dtype=None):
        """Masks as booleans and numbers in a dtype, once all of them fit.

        Args:
            dtype: defaults to `None`: numbers keep theirs.
        """
        steps = self._mapped(_MASKS, lambda part: ops.cast(part, "bool"))
        if dtype is not None:
            steps = steps._mapped(_NUMBERS, lambda part: ops.cast(part, dtype))
        steps.check()
        return steps

    def check(self):
        """Raise unless masks and durations fit the inputs.

        Durations that can be read now must be finite and not negative.
        """
        for name in _MASKS:
            mask = getattr(self, name)
            if mask is not None:
                check_mask(name, mask, self.inputs)
        if self.time_deltas is None:
            return
        check_time_deltas(self.time_deltas.shape, self.inputs.shape[:-1])
        values = values_of(self.time_deltas)
        counts = None if self.mask is None else values_of(self.mask)
        if values is not None and (self.mask is None or counts is not None):
            require_durations("time_deltas", values, counts)

    def backward(self):
        """The steps from the last to the first."""
        steps = self._mapped(["reset_mask"], packing.backward_resets)
        return steps._mapped(_ALONG_TIME, lambda part: ops.flip(part, axis=1))

    @property
    def is_plain(self):
        """Whether steps have the length that the weights alone give them."""
        return self.time_deltas is None and not self.options

    def with_time(self):
        """A single step as sequences of one."""
        return self._mapped(_ALONG_TIME, lambda part: ops.expand_dims(part, 1))

    def with_rows(self, inputs, count):
        """The steps of other inputs, which have `count` rows for each row."""
        steps = self._replace(inputs=None)._mapped(
            (*_ALONG_TIME, "lengths"),
            lambda part: ops.repeat(part, count, axis=0),
        )
        return steps._replace(inputs=inputs)

    def with_inputs(self, inputs):
        """The steps with other inputs, which are zero behind each row's end."""
        if self.lengths is not None:
            mask = packing.mask_of_lengths(self.lengths, ops.shape(inputs)[1])
            inputs = packing.zero_masked(inputs, mask)
        return self._replace(inputs=inputs)

    def last_of(self, outputs):
        """The outputs (batch, time, ...) at the last step of each row."""
        if self.lengths is None:
            return outputs[:, -1]
        last = ops.maximum(self.lengths - 1, 0)
        return packing.take(outputs, last[:, None])[:, 0]

    def state_after(self, states, final_state, before=None):
        """The state after the last step of each row, (batch, ...).

        Args:
            states: (batch, time, ...), after each step. With `lengths` only.
            final_state: (batch, ...), after the last step of all.
            before: (batch, ...), before the first step. Defaults to `None`,
                zero.
        """
        if self.lengths is None:
            return final_state
        return self.unless_empty(self.last_of(states), before)

    def unless_empty(self, after, before=None):
        """States after the steps of each row, and before it if it has none.

        Args:
            after: (batch, ...).
            before: (batch, ...). Defaults to `None`, zero.
        """
        if self.lengths is None:
            return after
        before = 0.0 if before is None else before
        return packing.where_rows(self.lengths <= 0, before, after)

    def packed(self):
        """The unmasked steps of each row at its front, in their order.

        Returns:
            `Steps` without a mask and with `lengths`. What masked steps held
            is gone.
        """
        mask = self.mask
        lengths = packing.lengths(mask)
        steps = self._mapped(_NUMBERS, lambda part: to_front(part, mask))
        if self.reset_mask is not None:
            steps = steps._replace(
                reset_mask=packing.moved_resets(
                    self.reset_mask, lengths, packing.order(mask)
                )
            )
        return steps._replace(mask=None, lengths=lengths)

    def _mapped(self, names, function):
        """The steps with a function of those parts that are given."""
        parts = {
            name: function(part)
            for name, part in zip(self._fields, self)
            if name in names and part is not None
        }
        return self._replace(**parts) if parts else self


def run_masked(run, steps, wanted, zero_output, reset_states=None):
    """Run a recurrence on the unmasked steps only.

    The recurrence skips masked steps: the unmasked steps of each row are
    moved to the front, and the outputs back to their places. This works for
    any mask, and the padding at the end of a row cannot affect an output.

    Args:
        run: function of packed `Steps`; returns `(outputs, final_states)`, as
            `wanted`. The states may be `None`.
        steps: `Steps` with a mask.
        wanted: `Wanted`.
        zero_output: boolean, whether outputs at masked steps are zero instead
            of repeating the previous output.
        reset_states: list of the states after a reset. Defaults to `None`:
            zeros.

    Returns:
        `(outputs, final_states)`, as `run` does.
    """
    mask, resets = steps.mask, steps.reset_mask
    outputs, final_states = run(steps.packed())
    # Whether there was an unmasked step, since the last reset.
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    happened = counts > 0
    if resets is not None:
        segments = packing.segment_ids(resets)
        last = packing.take(
            packing.take(segments, packing.order(mask)),
            ops.maximum(counts - 1, 0),
        )
        happened = happened & (last == segments)
        is_over = ~happened[:, -1] & (segments[:, -1] > 0)
        reset_states = reset_states or [0.0] * len(final_states or ())
        final_states = final_states and [
            packing.where_rows(is_over, *pair)
            for pair in zip(reset_states, final_states)
        ]
    if not wanted.all_outputs:
        counts = mask[:, -1:] if zero_output else happened[:, -1:]
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
    parts = {name: getattr(steps, name) for name in _NUMBERS}
    parts = {k: v for k, v in parts.items() if v is not None}
    count = len(parts)

    def run_of_tensors(*tensors):
        given = steps._replace(**dict(zip(parts, tensors)))
        values = tensors[count : count + len(variables)]
        before = list(tensors[count + len(variables) :]) or None
        replaced = list(zip(variables, values))
        with keras.StatelessScope(replaced) if replaced else nullcontext():
            outputs, final_states = run(given, before)
        return outputs, *(final_states or ())

    outputs, *final_states = keras.remat(run_of_tensors)(
        *parts.values(),
        *(variable.value for variable in variables),
        *(states or ()),
    )
    return outputs, final_states


def require_arrays(given):
    """Raise unless the tensors of a call are tensors of real numbers.

    Args:
        given: dictionary, the arguments of the call by name.
    """
    for name in ("sequences", *_ALONG_TIME):
        value = given.get(name)
        if name == "mask" and not _is_list_of_numbers(value):
            value = first_mask(value)
        if value is not None:
            require_array(name, value)
    for state in keras.tree.flatten(given.get("initial_state")):
        if state is not None:
            require_array("initial_state", state)


def _is_list_of_numbers(value):
    """Whether a mask is given as a list, and not as an array or several."""
    return isinstance(first_mask(value), (numbers.Real, np.bool_))
