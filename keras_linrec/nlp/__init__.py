"""Language models and text classifiers on KerasHub.

Needs the extra `nlp`; nothing else in the package imports this module.
"""

try:
    import keras_hub as _keras_hub  # noqa: F401
except ImportError as error:
    raise ImportError(
        "`keras_linrec.nlp` builds on KerasHub, which is not there, or does "
        "not import (see above). Install what the extra `nlp` names: "
        '`pip install grain "keras-nlp>=0.32"`.'
    ) from error

from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.byte_tokenizer import LinRecByteTokenizer
from keras_linrec.nlp.causal_lm import LinRecCausalLM
from keras_linrec.nlp.causal_lm_preprocessor import LinRecCausalLMPreprocessor
from keras_linrec.nlp.gated_feedforward import GatedFeedforward
from keras_linrec.nlp.text_classifier import LinRecTextClassifier
from keras_linrec.nlp.text_classifier_preprocessor import (
    LinRecTextClassifierPreprocessor,
)

__all__ = [
    "GatedFeedforward",
    "LinRecBackbone",
    "LinRecByteTokenizer",
    "LinRecCausalLM",
    "LinRecCausalLMPreprocessor",
    "LinRecTextClassifier",
    "LinRecTextClassifierPreprocessor",
]
