"""`keras.layers.Bidirectional` for masked, packed and irregular sequences."""

from collections.abc import Sequence
from typing import Any
from typing import Literal

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.layers.base.kept_masks import keep_masks
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.torch_module import LoadsAnyName
from keras_linrec.ops.masks.steps import require_arrays
from keras_linrec.validation import by_name
from keras_linrec.validation import first_mask
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_choice


@keras.saving.register_keras_serializable("keras_linrec")
class Bidirectional(SetLater, LoadsAnyName, keras.layers.Bidirectional):
    """`keras.layers.Bidirectional` that passes on what our layers take.

    Keras' wrapper calls its two layers with `initial_state`, `mask` and
    `training` alone. This one also passes `reset_mask` and `time_deltas`, as
    the call has them: a layer with `go_backwards` moves both itself. Read
    backwards, a sequence begins at its last step, so that each sequence of a
    row gives the outputs that it gives on its own. It also hands masks on in
    every version of Keras: from 3.16 on, Keras' own wrapper drops them with a
    warning. Everything else is as in Keras.

        y_t = merge(forward_t, backward_t)

    Args:
        layer: the layer that reads forwards, of this package or of Keras. It
            is copied.
        merge_mode: how the outputs of both directions are combined: `"sum"`,
            `"mul"`, `"ave"`, `"concat"`, or `None` for a pair. Defaults to
            `"concat"`.
        weights: initial weights of both layers, as in Keras. Defaults to
            `None`.
        backward_layer: the layer that reads backwards, with
            `go_backwards=True`. Defaults to `None`: a copy of `layer` with
            weights of its own.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of the forward layer's states, then the backward
            layer's. Defaults to `None`.
        mask: boolean tensor, (batch, time). Masked steps give zeros if the
            layers return sequences, as in Keras; a unit also carries its
            state over them. Defaults to `None`.
        training: whether dropout applies. Defaults to `None`, Keras' choice.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins, for layers that take it. Defaults to `None`.
        time_deltas: float tensor, (batch, time), for layers that take it.
            Defaults to `None`.
        sequences_mask: filled in by Keras with the mask of an earlier layer
            if a call has several tensors. Users pass `mask`.

    Output shape:
        As in Keras: that of the layer, with twice as many features for
        `"concat"`, or a pair for `None`; with `return_state`, a tuple of that
        and the states of both layers. Outputs have the policy's compute
        dtype.

    Raises:
        ValueError: at construction, for a wrong `merge_mode`, or layers that
            do not go together.
        TypeError: if a layer does not take a call argument that is given.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.Bidirectional(
    ...     keras_linrec.layers.LRU(4, state_size=8)
    ... )
    >>> sequences = np.random.rand(2, 10, 3).astype("float32")
    >>> begins = np.zeros((2, 10), bool)
    >>> begins[:, 6] = True
    >>> tuple(layer(sequences, reset_mask=begins).shape)
    (2, 10, 8)
    """

    def __init__(
        self,
        layer: Any,
        merge_mode: Literal["concat", "sum", "ave", "mul"] | None = "concat",
        weights: Sequence[types.Tensor] | None = None,
        backward_layer: Any = None,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        # Autocasting would bring states and time_deltas down to 16 bits; the
        # two layers cast what they compute in 16 bits.
        super().__init__(
            layer, merge_mode, weights, backward_layer, autocast=False, **kwargs
        )
        keep_masks(self)

    _accept_layer = SetLater._refuse

    def _accept_merge_mode(self, name, value):
        require_choice(name, value, (*_MERGES, None))
        return value

    def _accept_for_both(self, name, value):
        for layer in (self.forward_layer, self.backward_layer):
            setattr(layer, name, value)
        return value

    _accept_stateful = _accept_for_both
    _accept_return_state = _accept_for_both

    def _accept_return_sequences(self, name, value):
        self._accept_for_both(name, value)
        # As Keras does when it makes the layers.
        for layer in (self.forward_layer, self.backward_layer):
            if hasattr(layer, "zero_output_for_mask"):
                layer.zero_output_for_mask = value
        return value

    @in_any_byte_order
    def __call__(self, *args, **kwargs):
        require_arrays(by_name(type(self).call, args, kwargs))
        return super().__call__(*args, **kwargs)

    def call(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=None,
        reset_mask=None,
        time_deltas=None,
        sequences_mask=None,
    ):
        mask = first_mask(sequences_mask if mask is None else mask)
        marks = {"reset_mask": reset_mask, "time_deltas": time_deltas}
        marks = {name: part for name, part in marks.items() if part is not None}
        if not marks:
            return super().call(sequences, initial_state, mask, training)
        states = [None, None]
        if initial_state is not None:
            half = len(initial_state) // 2
            states = [initial_state[:half], initial_state[half:]]
        forward, backward = (
            layer(
                sequences,
                initial_state=state,
                mask=mask,
                training=training,
                **marks,
            )
            for layer, state in zip(
                (self.forward_layer, self.backward_layer), states
            )
        )
        if not self.return_state:
            return self._merged(forward, backward)
        (forward, *first), (backward, *second) = forward, backward
        merged = self._merged(forward, backward)
        merged = merged if self.merge_mode is None else (merged,)
        return (*merged, *first, *second)

    def _merged(self, forward, backward):
        forward = ops.cast(forward, self.compute_dtype)
        backward = ops.cast(backward, self.compute_dtype)
        if self.return_sequences:
            backward = ops.flip(backward, axis=1)
        if self.merge_mode is None:
            return forward, backward
        return _MERGES[self.merge_mode](forward, backward)

    def compute_output_spec(self, *args, **kwargs):
        spec = super().compute_output_spec(*args, **kwargs)
        if not self.return_state:
            return spec
        # Keras takes the states to have the dtype of the outputs.
        sequences = by_name(type(self).call, args, kwargs)["sequences"]
        states = [
            state
            for layer in (self.forward_layer, self.backward_layer)
            for state in layer.compute_output_spec(sequences)[1:]
        ]
        return (*spec[: -len(states)], *states)

    def compute_mask(self, inputs, mask=None):
        """The mask of the outputs; the states, which follow, have none."""
        mask = first_mask(mask) if self.return_sequences else None
        # Keras' own method fails for stateful layers that return states.
        return (mask, mask) if self.merge_mode is None else mask


_MERGES = {
    "concat": lambda one, other: ops.concatenate([one, other], axis=-1),
    "sum": lambda one, other: one + other,
    "ave": lambda one, other: (one + other) / 2,
    "mul": lambda one, other: one * other,
}
