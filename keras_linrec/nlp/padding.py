"""Moving a text's tokens before its padding, and back."""

import keras
from keras import ops

from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.moves import to_places


class PaddingLast(keras.layers.Layer):
    """Tokens in front of each row, wherever they were, and padding behind.

    Call arguments:
        token_ids: integers, (batch, time).
        padding_mask: (batch, time), true where there is a token.
        reset_mask: boolean, (batch, time), true at the first token of every
            text. Defaults to `None`.

    Returns:
        A dictionary of `token_ids`; `padding_mask`, boolean; `reset_mask`, if
        it was given.
    """

    # For `kernels/exporting.py`.
    _gives_masks = True
    # What `export_step` says of it.
    _reason_against_steps = (
        "it moves the tokens of whole texts. A language model runs token by "
        "token by the methods `LinRecBackbone.step` and "
        "`LinRecCausalLM.call_with_cache`"
    )

    def call(self, token_ids, padding_mask, reset_mask=None):
        mask = ops.cast(padding_mask, "bool")
        lengths, order = packing.lengths(mask), packing.order(mask)
        moved = {
            "token_ids": packing.take(token_ids, order),
            "padding_mask": packing.mask_of_lengths(
                lengths, ops.shape(mask)[1]
            ),
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
        }
        if reset_mask is not None:
            moved["reset_mask"] = keras.KerasTensor(shape, "bool")
        return moved


class PaddingBack(keras.layers.Layer):
    """Steps (batch, time, features) back from where `PaddingLast` moved them.

    Padding repeats the step of the token before it, if there is one, and is
    zero otherwise. The mask of the result is `mask`, the padding mask.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, outputs, mask):
        return to_places(outputs, mask, repeats=True)

    def compute_output_spec(self, outputs, mask):
        return keras.KerasTensor(outputs.shape, self.compute_dtype)
