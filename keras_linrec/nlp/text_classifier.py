"""Classes of texts."""

from typing import Any
from typing import Literal

import keras
from keras import ops
from keras_hub.models import TextClassifier

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.files import replacing
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.set_later import accepted_share
from keras_linrec.models.pooling import OF_MASKED
from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.task import LinRecTask
from keras_linrec.nlp.task import require_parts
from keras_linrec.nlp.text_classifier_preprocessor import (
    LinRecTextClassifierPreprocessor,
)
from keras_linrec.ops.masks import packing
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

# What stands side by side.
_POOLS = {name: (pool,) for name, pool in OF_MASKED.items()}
_POOLS["ends"] = packing.first, packing.last
POOLINGS = tuple(_POOLS)


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecTextClassifier(LinRecTask, TextClassifier):
    """Classes of texts, by a `LinRecBackbone`.

        y = activation(W dropout(pool(backbone(inputs))) + b)

    Args:
        backbone: a `LinRecBackbone` that is not packed: a row is one text.
        num_classes: integer.
        preprocessor: a `LinRecTextClassifierPreprocessor`, or `None`, for
            inputs that are tokens already. Defaults to `None`.
        pooling: `"mean"`, the mean over the tokens of a text; `"max"`, the
            maximum of each feature over them, for evidence that may be
            anywhere in a text; `"last"`, the last token; or `"ends"`, the
            first and the last token side by side, where units that read both
            ways have seen the whole text. Defaults to `"mean"`.
        activation: of the outputs. Defaults to `None`: they are logits.
        dropout: float in [0, 1), the share of pooled features to drop during
            training. Defaults to 0.
        head_dtype: a dtype policy of W and b, or its name. Defaults to
            `None`, the backbone's; a preset that was quantised has another.
        **kwargs: `name`, `compile`.

    Call arguments:
        inputs: what the backbone takes.

    Output shape:
        (batch, num_classes).

    Raises:
        ValueError: for an argument out of its range, and for a backbone that
            is packed or has fewer tokens than the tokenizer, at construction.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import nlp
    >>> backbone = nlp.LinRecBackbone(
    ...     vocabulary_size=259,
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     unit_arguments={"state_size": 8, "num_heads": 2},
    ... )
    >>> preprocessor = nlp.LinRecTextClassifierPreprocessor(
    ...     nlp.LinRecByteTokenizer(), sequence_length=16
    ... )
    >>> model = nlp.LinRecTextClassifier(
    ...     backbone, num_classes=2, preprocessor=preprocessor
    ... )
    >>> history = model.fit(["good", "bad"], np.array([1, 0]), verbose=0)
    >>> model.predict(["good", "bad", "ugly"], verbose=0).shape
    (3, 2)
    """

    backbone_cls = LinRecBackbone
    preprocessor_cls = LinRecTextClassifierPreprocessor

    def __init__(
        self,
        backbone: Any,
        num_classes: int,
        preprocessor: Any = None,
        pooling: Literal["mean", "max", "last", "ends"] = "mean",
        activation: types.Identifier = None,
        dropout: float = 0.0,
        head_dtype: Any = None,
        **kwargs: Any,
    ):
        require_count("num_classes", num_classes)
        # Keras takes no NumPy integers.
        num_classes = int(num_classes)
        require_choice("pooling", pooling, POOLINGS)
        require_parts(backbone, preprocessor)
        if backbone.packed:
            raise ValueError(
                "`backbone` should have one text in a row to pool over. "
                "Received: backbone.packed=True"
            )
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.activation = activation
        policy = backbone.dtype_policy
        self.pooler = TextPooling(pooling, dtype=policy, name="pooler")
        self.output_dropout = keras.layers.Dropout(
            0.0, dtype=policy, name="output_dropout"
        )
        self.dropout = dropout
        self.output_dense = keras.layers.Dense(
            num_classes,
            activation=self.activation,
            dtype=head_dtype or policy,
            name="logits",
        )
        inputs = backbone.input
        outputs = self.pooler(backbone(inputs), inputs["padding_mask"])
        outputs = self.output_dense(self.output_dropout(outputs))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        # Config.
        self.num_classes = num_classes
        self.pooling = pooling

    _accept_head_dtype = SetLater._refuse

    def _accept_activation(self, name, value):
        activation = activations.get_unary(value)
        if hasattr(self, "output_dense"):
            self.output_dense.activation = activation
        return activation

    def _accept_dropout(self, name, value):
        layer = self.output_dropout
        layer.rate = accepted_share(layer, name, value, layer.seed)
        return value

    # KerasHub keeps the optimizer's numbers with the head's weights, and then
    # wants them of an optimizer that has none yet.

    def save_task_weights(self, filepath):
        with replacing(filepath) as path:
            keras.saving.save_weights(
                self, path, objects_to_skip=self._all_but_the_head()
            )

    def load_task_weights(self, filepath):
        keras.saving.load_weights(
            self, filepath, objects_to_skip=self._all_but_the_head()
        )

    def _all_but_the_head(self):
        return [*self.backbone._flatten_layers(), self.optimizer]

    def get_config(self):
        head_dtype = None
        if self.output_dense.quantization_mode is not None:
            head_dtype = keras.dtype_policies.serialize(
                self.output_dense.dtype_policy
            )
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "pooling": self.pooling,
            "activation": activations.serialize(self.activation),
            "dropout": self.dropout,
            "head_dtype": head_dtype,
        }


class TextPooling(keras.layers.Layer):
    """One vector of a text: of all its steps, the last, or the two ends.

    Args:
        pooling: one of `POOLINGS`.
    """

    def __init__(self, pooling, **kwargs):
        super().__init__(**kwargs)
        self.pooling = pooling
        self.supports_masking = True

    def compute_mask(self, outputs, mask=None):
        return None

    def call(self, outputs, padding_mask):
        # Sums of many steps in full precision.
        outputs = ops.cast(outputs, accumulation_dtype(outputs))
        mask = ops.cast(padding_mask, "bool")
        pooled = [pool(outputs, mask) for pool in _POOLS[self.pooling]]
        return ops.cast(ops.concatenate(pooled, axis=-1), self.compute_dtype)

    def compute_output_shape(self, outputs_shape, padding_mask_shape):
        features = outputs_shape[-1] * len(_POOLS[self.pooling])
        return outputs_shape[0], features
