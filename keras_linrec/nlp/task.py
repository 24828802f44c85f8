"""What the language model and the classifier of texts share."""

import keras

from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.models.saved_whole import SavedWhole
from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.preset import NamedPreset


class LinRecTask(SetLater, NamedPreset, SavedWhole):
    """A mixin for tasks of KerasHub.

    Keras compiles what it loads unless a class has a `compile` of its own, as
    those of KerasHub have: their optimizers would be lost.
    """

    def _accept_backbone(self, name, value):
        if self.backbone not in (None, value):
            raise self._cannot_change(name, value)
        return value

    def _accept_preprocessor(self, name, value):
        require_preprocessor(self.backbone, value)
        return value

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            has_state = self.optimizer is not None and self.optimizer.built
            config["optimizer_has_state"] = has_state
        return config

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(config)
        has_state = config.pop("optimizer_has_state", False)
        self.compile(**config)
        # Keras warns of a state without one in the file.
        if has_state:
            self.optimizer.build(self.trainable_variables)


def require_parts(backbone, preprocessor):
    """Raise unless a task can be made of a backbone and a preprocessor.

    On tokens that a backbone does not know, JAX would train to weights that
    are NaN.
    """
    if not isinstance(backbone, LinRecBackbone):
        raise ValueError(
            "`backbone` should be a `LinRecBackbone`. "
            f"Received: backbone={backbone}"
        )
    require_preprocessor(backbone, preprocessor)


def require_preprocessor(backbone, preprocessor):
    """Raise unless a preprocessor gives tokens that a backbone knows."""
    if not isinstance(preprocessor, (keras.layers.Layer, type(None))):
        raise ValueError(
            "`preprocessor` should be a preprocessor of KerasHub or None. "
            f"Received: preprocessor={preprocessor}"
        )
    count = _vocabulary_size(getattr(preprocessor, "tokenizer", None))
    if count is not None and count > backbone.vocabulary_size:
        raise ValueError(
            "`backbone` should have at least as many tokens as the tokenizer "
            "of `preprocessor`. Received: backbone.vocabulary_size="
            f"{backbone.vocabulary_size}, "
            f"preprocessor.tokenizer.vocabulary_size()={count}"
        )


def _vocabulary_size(tokenizer):
    """The number of tokens; `None` without a vocabulary."""
    try:
        return tokenizer.vocabulary_size()
    # The latter before a preset has loaded the vocabulary.
    except (AttributeError, ValueError):
        return None
