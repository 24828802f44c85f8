"""Moving a text's tokens before its padding, and back."""

import keras
from keras import ops

from keras_linrec.ops import packing


class PaddingLast(keras.layers.Layer):
    """Tokens in front of each row, wherever they were, and padding behind.

    Call arguments:
        token_ids: integers, (batch, time).
        padding_mask: (batch, time), true where there is a token.
        reset_mask: boolean, (batch, time), true at the first token of every
            text. Defaults to `None`.

    Returns:
        A dictionary of `token_ids`; `padding_mask`, boolean; `reset_mask`, if
        it was given; and `position`, integers (batch, time), where what stood
        at a step went, for padding where the token before it went.
    """

    def call(self, token_ids, padding_mask, reset_mask=None):
        mask = ops.cast(padding_mask, "bool")
        position = ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1
        lengths, order = packing.lengths(mask), packing.order(mask)
        moved = {
            "token_ids": packing.take(token_ids, order),
            "padding_mask": packing.before(lengths, ops.shape(mask)[1]),
            "position": ops.maximum(position, 0),
        }
        if reset_mask is not None:
            moved["reset_mask"] = packing.moved_resets(
                reset_mask, lengths, order
            )
        return moved

    def compute_output_spec(self, token_ids, padding_mask, reset_mask=None):
        shape = token_ids.shape
        moved = {
            "token_ids": keras.KerasTensor(shape, token_ids.dtype),
            "padding_mask": keras.KerasTensor(shape, "bool"),
            "position": keras.KerasTensor(shape, "int32"),
        }
        if reset_mask is not None:
            moved["reset_mask"] = keras.KerasTensor(shape, "bool")
        return moved


class TakePositions(keras.layers.Layer):
    """Steps `position`, integers (batch, count), of (batch, time, features).

    Their mask, in the place of that of the outputs, is `mask`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, outputs, position, mask):
        return packing.take(outputs, position)

    def compute_output_spec(self, outputs, position, mask):
        shape = (*position.shape, outputs.shape[-1])
        return keras.KerasTensor(shape, self.compute_dtype)
