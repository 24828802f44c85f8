"""Texts to what a classifier of texts takes."""

from typing import Any

import keras
from keras_hub.models import TextClassifierPreprocessor

from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.byte_tokenizer import LinRecByteTokenizer
from keras_linrec.nlp.byte_tokenizer import require_special_tokens
from keras_linrec.nlp.preset import NamedPreset
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

# How several segments that are too long share a row, as in KerasHub.
_CUTS = ("round_robin", "waterfall")


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecTextClassifierPreprocessor(NamedPreset, TextClassifierPreprocessor):
    """Texts to tokens: `<start> text <end>`, one text a row.

    A text may come in several segments; each ends with `<end>`.

    Args:
        tokenizer: a `LinRecByteTokenizer`, or any other tokenizer of KerasHub
            that has `start_token_id`, `end_token_id` and a `pad_token_id`
            that is neither.
        sequence_length: integer, the tokens of a row; longer texts are cut.
            Defaults to 512.
        truncate: which of several segments are cut, `"round_robin"` or
            `"waterfall"`. Defaults to `"round_robin"`.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: a string, a batch of strings, or a tuple of such segments.
        y, sample_weight: handed on as they are.

    Returns:
        The dictionary that `LinRecBackbone` takes; with labels, `(x, y)` or
        `(x, y, sample_weight)`.

    Raises:
        ValueError: for a tokenizer without those tokens, and for one whose
            `pad_token_id` is its `start_token_id` or its `end_token_id`.

    Example:

    >>> import keras
    >>> from keras_linrec.nlp import LinRecByteTokenizer
    >>> from keras_linrec.nlp import LinRecTextClassifierPreprocessor
    >>> preprocessor = LinRecTextClassifierPreprocessor(
    ...     LinRecByteTokenizer(), sequence_length=6
    ... )
    >>> x = preprocessor(["abc"])
    >>> keras.ops.convert_to_numpy(x["token_ids"]).tolist()
    [[256, 97, 98, 99, 257, 258]]
    """

    backbone_cls = LinRecBackbone
    tokenizer_cls = LinRecByteTokenizer

    def __init__(self, tokenizer: Any, **kwargs: Any):
        require_count(
            "sequence_length", kwargs.get("sequence_length"), optional=True
        )
        require_choice("truncate", kwargs.get("truncate", _CUTS[0]), _CUTS)
        super().__init__(tokenizer, **kwargs)
        require_special_tokens(tokenizer)
        pad = tokenizer.pad_token_id
        if pad in (tokenizer.start_token_id, tokenizer.end_token_id):
            raise ValueError(
                "`tokenizer` should have a `pad_token_id` that no text has. "
                f"Received: {type(tokenizer).__name__} with pad_token_id={pad}"
            )

    def call(self, x, y=None, sample_weight=None):
        outputs = super().call(x, y=y, sample_weight=sample_weight)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(outputs)
        # Which segment a token is of is no input of the backbone.
        x = {name: x[name] for name in ("token_ids", "padding_mask")}
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
