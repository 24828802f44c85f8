"""The models on the pages learn: each tells three tones in noise apart."""

import ast

import keras
import numpy as np
import pytest
from support import DOCS
from support import pages

from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier

pytestmark = pytest.mark.rest

RADIANS_PER_STEP = np.array([0.05, 0.1, 0.15])
# (page, name of the model in the page's code); the models of the README and
# the home page, which these tones are from, are asserted there.
MODELS = [
    ("guides/streaming.md", "trained"),
    ("guides/more_than_one_device.md", "build"),
]
# Weekly: each takes 10 to 60 seconds on a busy machine.
MORE_MODELS = [
    ("guides/choose_a_unit.md", "model"),
    ("guides/choose_a_unit.md", "classifier"),
    ("guides/export.md", "model"),
    ("guides/serving.md", "model"),
    ("guides/streaming.md", "model"),
    ("guides/switching_backends.md", "model"),
    ("guides/saving.md", "model"),
    ("guides/masks_and_packing.md", "model"),
    ("guides/tour.md", "classifier"),
    ("guides/tour.md", "deep"),
    ("guides/stability.md", "model"),
    ("api/layers/lssl.md", "model"),
    ("api/layers/rotrnn.md", "model"),
    ("api/layers/lru.md", "model"),
    ("api/layers/orthogonal_rnn.md", "model"),
    ("api/layers/lipschitz_rnn.md", "model"),
]
EPOCHS, BATCH = 10, 32
# Nonlinear layers move their states by small steps. Their learning rate falls
# to zero: at a constant one, the accuracy of the tour's classifier still varies
# between .66 and 1.00 from one epoch to the next, here it is 1.00 from the
# seventh on (five seeds).
NONLINEAR = {
    ("guides/tour.md", "classifier"),
    ("guides/stability.md", "model"),
    ("api/layers/lipschitz_rnn.md", "model"),
}


def tones(count, seed):
    """Tones of 150 to 600 steps, zeros behind them, and which they are."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=count)
    lengths = generator.integers(150, 601, size=(count, 1))
    phases = generator.uniform(0, 2 * np.pi, size=(count, 1))
    waves = np.sin(RADIANS_PER_STEP[labels, None] * np.arange(600) + phases)
    waves += generator.normal(0, 0.5, size=waves.shape)
    waves = np.where(np.arange(600) < lengths, waves, 0.0)
    return waves[:, :, None].astype("float32"), labels


@pytest.mark.parametrize(
    ("page", "name"),
    [
        *MODELS,
        *(pytest.param(*m, marks=pytest.mark.weekly) for m in MORE_MODELS),
    ],
)
def test_a_model_of_a_page_tells_three_tones_apart(page, name):
    shown = model_of(DOCS / page, name)
    keras.utils.set_random_seed(0)
    model = for_tones(shown)
    known, new = tones(1000, seed=0), tones(400, seed=1)
    if reads_tokens(shown):
        known, new = [(as_tokens(x), y) for x, y in (known, new)]
    rate = 3e-3
    if (page, name) in NONLINEAR:
        steps = EPOCHS * -(-len(known[0]) // BATCH)
        rate = keras.optimizers.schedules.CosineDecay(1e-2, steps)
    model.compile(
        keras.optimizers.Adam(rate),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(*known, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    _, accuracy = model.evaluate(*new, verbose=0)
    assert accuracy > 0.95


def model_of(page, name):
    if name != "build":
        return pages.run(page)[name]
    # Its page runs under JAX with eight devices.
    codes = [code for kind, code in pages.blocks(page)]
    code = next(code for code in codes if "def build()" in code)
    tree = ast.parse(code)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef))
    names = {"keras": keras, "RotRNN": RotRNN}
    exec(ast.unparse(function), names)
    return names["build"]()


def for_tones(model):
    """A new model of the same layers, which tells three classes apart."""
    if not isinstance(model, keras.Sequential):
        return keras.Sequential([keras.layers.Masking(), three_classes(model)])
    layers = [
        type(layer).from_config(layer.get_config())
        for layer in model.layers
        if not isinstance(layer, keras.layers.Masking)
    ]
    if not reads_tokens(model):
        layers.insert(0, keras.layers.Masking())
    if isinstance(layers[-1], SequenceClassifier):
        return keras.Sequential([*layers[:-1], three_classes(layers[-1])])
    if is_head(layers[-1]):
        layers.pop()
    if not averages(layers[-1]) and getattr(
        layers[-1], "return_sequences", True
    ):
        layers.append(keras.layers.GlobalAveragePooling1D())
    head = keras.layers.Dense(3, activation="softmax")
    return keras.Sequential([*layers, head])


def three_classes(classifier):
    config = {**classifier.get_config(), "num_classes": 3}
    return SequenceClassifier.from_config(config)


def reads_tokens(model):
    return isinstance(model.layers[0], keras.layers.Embedding)


def as_tokens(waves):
    """Amplitudes as whole numbers from 1 to 99, and 0 for padding."""
    levels = np.clip(np.round(50 + 16 * waves[:, :, 0]), 1, 99)
    return np.where(waves[:, :, 0] == 0, 0, levels).astype("int32")


def averages(layer):
    return isinstance(layer, keras.layers.GlobalAveragePooling1D)


def is_head(layer):
    """Whether a layer is the answer's, whose classes are the page's."""
    heads = (keras.activations.linear, keras.activations.softmax)
    return isinstance(layer, keras.layers.Dense) and layer.activation in heads
