"""Small language models and classifiers of texts, and what they give."""

import contextlib

import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec import nlp

# TensorFlow runs its graphs as they are in half of the time that XLA takes to
# compile them; one test has it compile.
JIT = keras.backend.backend() == "jax"
UNIT_ARGUMENTS = {
    "rotrnn": {"state_size": 8, "num_heads": 2},
    "lssl": {"state_size": 6, "dt_min": 0.01},
    "ldstack": {"state_size": 8, "activation": "tanh"},
}
EVERY_UNIT = pytest.mark.parametrize("unit", UNIT_ARGUMENTS)
# What a file of such tests ignores.
WARNINGS = [
    # Keras names every layer that has nothing to quantise.
    pytest.mark.filterwarnings("ignore:.*have a `quantize` method"),
    pytest.mark.filterwarnings("ignore:The `check_types` argument"),
]
PROMPTS = ["To be", "or", "not to be, tha"]


def make_backbone(unit="rotrnn", **arguments):
    defaults = {
        "vocabulary_size": 259,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 12,
        "unit": unit,
        "unit_arguments": UNIT_ARGUMENTS.get(unit),
    }
    backbone = nlp.LinRecBackbone(**{**defaults, **arguments})
    # As far apart as trained ones: else every token is the likeliest's twin.
    for weight in backbone.token_embedding.weights:
        weight.assign(30 * array(weight).astype("float32"))
    return backbone


def make_preprocessor(sequence_length=24, **arguments):
    return nlp.LinRecCausalLMPreprocessor(
        nlp.LinRecByteTokenizer(), sequence_length=sequence_length, **arguments
    )


def make_model(unit="rotrnn", sampler="greedy", packed=False, **arguments):
    model = nlp.LinRecCausalLM(
        make_backbone(unit, packed=packed, **arguments),
        make_preprocessor(packed=packed),
    )
    model.compile(keras.optimizers.SGD(0.1), sampler=sampler, jit_compile=JIT)
    return model


def make_classifier(**arguments):
    return nlp.LinRecTextClassifier(
        make_backbone(num_layers=1),
        num_classes=2,
        preprocessor=nlp.LinRecTextClassifierPreprocessor(
            nlp.LinRecByteTokenizer(), sequence_length=12
        ),
        **arguments,
    )


def some_inputs(batch=2, time=6):
    generator = np.random.default_rng([batch, time])
    return {
        "token_ids": generator.integers(256, size=(batch, time)),
        "padding_mask": np.ones((batch, time), "int32"),
    }


@contextlib.contextmanager
def taking_tokens(model):
    """A model that takes tokens where it took texts."""
    preprocessor, model.preprocessor = model.preprocessor, None
    try:
        yield model
    finally:
        model.preprocessor = preprocessor


def outputs_of(model, inputs):
    with taking_tokens(model):
        return array(model.predict_on_batch(inputs))


def generated(model, inputs, **options):
    with taking_tokens(model):
        outputs = model.generate(inputs, **options)
    return {name: array(value) for name, value in outputs.items()}
