"""Texts to what a language model is trained on and generates from."""

from typing import Any

import keras
import numpy as np
from keras_hub.models import CausalLMPreprocessor

from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.byte_tokenizer import LinRecByteTokenizer
from keras_linrec.nlp.byte_tokenizer import require_special_tokens
from keras_linrec.nlp.preset import NamedPreset
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecCausalLMPreprocessor(NamedPreset, CausalLMPreprocessor):
    """Texts to tokens, labels and weights, one a row or several.

    A text is `<start> its tokens <end>`; a model is given all of it but the
    last token and predicts all of it but the first. With one text a row, this
    is what every `keras_hub.models.CausalLMPreprocessor` does.

    With `packed=True`, texts follow one another in a row for as long as they
    fit whole; the first that does not fit begins the next row. There are at
    most as many rows as texts. Each text is in its row without its `<end>`, so
    that its last token is followed by the `<start>` of the next text; the
    label of that last token is `<end>`. No token predicts the next text, no
    prediction is lost, and at each `True` of `reset_mask` the units start from
    zero: losses and gradients are those of the texts on their own.

    While a model is trained, the number of rows differs from batch to batch,
    and JAX compiles a program for each number that it has not met. To pack
    once, call the preprocessor with all texts, and train with
    `preprocessor=None`.

    Args:
        tokenizer: a `LinRecByteTokenizer`, or any other tokenizer of KerasHub
            that has `start_token_id`, `end_token_id` and `pad_token_id`.
        sequence_length: integer, the tokens of a row; longer texts are cut.
            Defaults to 1024.
        add_start_token, add_end_token: whether texts have `<start>` and
            `<end>` in training. Default to `True`.
        packed: whether several texts share a row, for a backbone that is
            `packed` too. Defaults to `False`.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: a string, or a batch of strings.
        y, sample_weight: `None`; labels and weights are made here.
        sequence_length: integer, in the place of the layer's own. Defaults to
            `None`.

    Returns:
        `(x, y, sample_weight)`: the dictionary that `LinRecBackbone` takes,
        the labels and their weights.

    Raises:
        ValueError: at construction, for a tokenizer without those tokens; at
            the call, for `packed=True` in a `tf.data` pipeline.

    Example:

    >>> import keras
    >>> from keras_linrec.nlp import LinRecByteTokenizer
    >>> from keras_linrec.nlp import LinRecCausalLMPreprocessor
    >>> array = keras.ops.convert_to_numpy
    >>> preprocessor = LinRecCausalLMPreprocessor(
    ...     LinRecByteTokenizer(), sequence_length=8, packed=True
    ... )
    >>> x, y, sample_weight = preprocessor(["abc", "de"])
    >>> array(x["token_ids"]).tolist()
    [[256, 97, 98, 99, 256, 100, 101, 258]]
    >>> array(y).tolist()
    [[97, 98, 99, 257, 100, 101, 257, 258]]
    >>> array(x["reset_mask"]).astype(int).tolist()
    [[1, 0, 0, 0, 1, 0, 0, 0]]
    """

    backbone_cls = LinRecBackbone
    tokenizer_cls = LinRecByteTokenizer

    def __init__(self, tokenizer: Any, packed: bool = False, **kwargs: Any):
        require_bool("packed", packed)
        require_count(
            "sequence_length", kwargs.get("sequence_length"), optional=True
        )
        super().__init__(tokenizer, **kwargs)
        require_special_tokens(tokenizer)
        self.packed = packed

    def call(self, x, y=None, sample_weight=None, sequence_length=None):
        if self.packed and self._use_tf_workflow():
            raise ValueError(
                "Texts are packed in Python, not within a graph of "
                "TensorFlow: give `fit` the texts themselves (which needs "
                "`grain`), or pack them first. Received: packed=True in a "
                "`tf.data` pipeline"
            )
        outputs = super().call(
            x, y=y, sample_weight=sample_weight, sequence_length=sequence_length
        )
        return self._packed(*outputs) if self.packed else outputs

    def _packed(self, x, y, sample_weight):
        counts = _to_numpy(sample_weight).astype(bool)
        rows, columns, begins = _places(np.atleast_2d(counts))
        height = rows.max(initial=0) + 1
        shape = (height, counts.shape[-1])

        def place(values, elsewhere):
            array = np.full(shape, elsewhere, values.dtype)
            array[rows, columns] = values
            # One text that came without a batch goes without one.
            array = array if counts.ndim == 2 else array[0]
            if isinstance(sample_weight, np.ndarray):
                return array
            return keras.ops.convert_to_tensor(array)

        pad = self.tokenizer.pad_token_id
        counted = np.ones(len(rows), bool)
        packed = {
            "token_ids": place(_to_numpy(x["token_ids"])[counts], pad),
            "padding_mask": place(counted, False),
            "reset_mask": place(begins, False),
        }
        labels = place(_to_numpy(y)[counts], pad)
        return packed, labels, place(counted, False)

    def get_config(self):
        return {**super().get_config(), "packed": self.packed}


def _places(counts):
    """Where the steps that count of a batch go, row by row.

    Returns:
        Their rows, their columns, and whether each is a text's first.
    """
    width = counts.shape[1]
    row, filled = 0, 0
    rows, columns, begins = [], [], []
    for length in counts.sum(axis=1):
        if filled + length > width:
            row, filled = row + 1, 0
        rows.append(np.full(length, row))
        columns.append(np.arange(filled, filled + length))
        begins.append(np.arange(length) == 0)
        filled += length
    return tuple(np.concatenate(part) for part in (rows, columns, begins))


def _to_numpy(values):
    if keras.ops.is_tensor(values):
        return keras.ops.convert_to_numpy(values)
    return np.asarray(values)
