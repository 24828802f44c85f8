"""The models on the pages learn: each tells three tones in noise apart."""

import ast
from pathlib import Path

import keras
import numpy as np
import pages
import pytest

from keras_linrec.layers import RotRNN

DOCS = Path(__file__).parent.parent / "docs"
RADIANS_PER_STEP = np.array([0.05, 0.1, 0.15])
# (page, name of the model in the page's code); the models of the README and
# the home page, which these tones are from, are asserted there.
MODELS = [
    ("guides/choose_a_unit.md", "model"),
    ("guides/choose_a_unit.md", "classifier"),
    ("guides/export.md", "model"),
    ("guides/serving.md", "model"),
    ("guides/streaming.md", "model"),
    ("guides/streaming.md", "trained"),
    ("guides/more_than_one_device.md", "build"),
]


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


@pytest.mark.parametrize(("page", "name"), MODELS)
def test_a_model_of_a_page_tells_three_tones_apart(page, name):
    shown = model_of(DOCS / page, name)
    keras.utils.set_random_seed(0)
    model = for_tones(shown)
    model.compile(
        keras.optimizers.Adam(3e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(*tones(1000, seed=0), epochs=10, verbose=0)
    _, accuracy = model.evaluate(*tones(400, seed=1), verbose=0)
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
    """A new model of the same layers, with a head for three classes."""
    head = keras.layers.Dense(3, activation="softmax")
    if not isinstance(model, keras.Sequential):
        config = {**model.get_config(), "num_classes": 3}
        return keras.Sequential(
            [keras.layers.Masking(), type(model).from_config(config)]
        )
    layers = [
        type(layer).from_config(layer.get_config())
        for layer in model.layers
        if not isinstance(layer, keras.layers.Masking)
    ]
    if isinstance(layers[-1], keras.layers.Dense) and linear(layers[-1]):
        layers.pop()
    if not isinstance(layers[-1], keras.layers.GlobalAveragePooling1D):
        layers.append(keras.layers.GlobalAveragePooling1D())
    return keras.Sequential([keras.layers.Masking(), *layers, head])


def linear(dense):
    return dense.activation is keras.activations.linear
