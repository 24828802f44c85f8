"""Bytes as tokens, and three tokens that are no bytes."""

from typing import Any

import keras
import numpy as np
from keras_hub.tokenizers import ByteTokenizer

from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.preset import NamedPreset

_BYTES = 256
_SPECIAL_TOKENS = {
    "start_token": "<start>",
    "end_token": "<end>",
    "pad_token": "<pad>",
}
_SPECIAL_IDS = {
    token: _BYTES + index
    for index, token in enumerate(_SPECIAL_TOKENS.values())
}


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecByteTokenizer(NamedPreset, ByteTokenizer):
    """The bytes of a text in UTF-8 as tokens 0 to 255; any text fits.

    Behind them there are `start_token_id` 256, `end_token_id` 257 and
    `pad_token_id` 258, which no text has: `vocabulary_size()` is 259. There
    are no files to keep, so that a preset has all of it in its
    `tokenizer.json`.

    Args:
        lowercase: whether to fold the text to lower case, after which it does
            not come back as it was. Defaults to `False`.
        **kwargs: those of `keras_hub.tokenizers.ByteTokenizer`:
            `sequence_length`, `normalization_form`, `errors`,
            `replacement_char`; and `name`, `dtype`.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.nlp import LinRecByteTokenizer
    >>> tokenizer = LinRecByteTokenizer()
    >>> [list(map(int, ids)) for ids in tokenizer(["Hi", "å"])]
    [[72, 105], [195, 165]]
    >>> tokenizer.detokenize([256, 72, 105, 257, 258])
    'Hi'
    """

    backbone_cls = LinRecBackbone

    def __init__(self, lowercase: bool = False, **kwargs: Any):
        super().__init__(lowercase=lowercase, **kwargs)
        for name, token in _SPECIAL_TOKENS.items():
            self._add_special_token(token, name)
        self.file_assets = []
        # There is nothing to build, and `quantize` asks whether it is.
        self.built = True

    def vocabulary_size(self):
        """The number of tokens, 259."""
        return _BYTES + len(_SPECIAL_IDS)

    def get_vocabulary(self):
        """A dictionary of the tokens as strings, and their numbers."""
        return {**{chr(byte): byte for byte in range(_BYTES)}, **_SPECIAL_IDS}

    def id_to_token(self, id):
        """The token of a number as a string, or `None` above 258.

        Args:
            id: integer, 0 to 258.
        """
        if id >= _BYTES:
            return {v: k for k, v in _SPECIAL_IDS.items()}.get(id)
        return super().id_to_token(id)

    def token_to_id(self, token):
        """The number of a token.

        Args:
            token: string, a single character or `"<start>"`, `"<end>"` or
                `"<pad>"`.
        """
        if token in _SPECIAL_IDS:
            return _SPECIAL_IDS[token]
        return super().token_to_id(token)

    def detokenize(self, inputs):
        """The texts of tokens; `<start>`, `<end>` and `<pad>` are left out.

        Args:
            inputs: integers, (time,) or (batch, time), as a tensor, an array
                or lists; the lists of a batch may differ in length.

        Returns:
            A string, or a list of them.

        Raises:
            ValueError: for an integer that is not from 0 to 258, and, with
                `errors="strict"`, for bytes that are not UTF-8.
        """
        rows, batched = _rows(inputs)
        texts = [self._text(row) for row in rows]
        return texts if batched else texts[0]

    def _text(self, row):
        if any(id < 0 or id >= self.vocabulary_size() for id in row):
            raise ValueError(
                "`inputs` should be integers from 0 to "
                f"{self.vocabulary_size() - 1}. Received: inputs={row}"
            )
        text = bytes(id for id in row if id < _BYTES)
        if self.errors == "replace":
            # Python's own handler knows one character only.
            text = text.decode("utf-8", "replace")
            return text.replace("\ufffd", chr(self.replacement_char))
        return text.decode("utf-8", self.errors)

    # Presets: there are no files beside the configuration.

    def save_assets(self, dir_path):
        pass

    def load_assets(self, dir_path):
        pass

    def load_preset_assets(self, preset):
        pass


def require_special_tokens(tokenizer):
    """Raise if a tokenizer has no tokens that begin, end and fill texts."""
    names = [f"{name}_id" for name in _SPECIAL_TOKENS]
    missing = [name for name in names if not hasattr(tokenizer, name)]
    if missing:
        raise ValueError(
            f"`tokenizer` should have {', '.join(names)}. Received: "
            f"{type(tokenizer).__name__} without {', '.join(missing)}"
        )


def _rows(inputs):
    """Lists of integers, and whether there was a batch of them."""
    if hasattr(inputs, "to_list"):
        inputs = inputs.to_list()
    if keras.ops.is_tensor(inputs):
        inputs = keras.ops.convert_to_numpy(inputs)
    if not isinstance(inputs, (list, tuple)):
        inputs = np.asarray(inputs).tolist()
    if not isinstance(inputs, (list, tuple)):
        return [[inputs]], False
    if len(inputs) and not np.ndim(inputs[0]):
        return [[int(id) for id in inputs]], False
    return [[int(id) for id in np.asarray(row)] for row in inputs], True
