"""What a user types first: every layer, given its units alone."""

import inspect

import keras
import numpy as np
import pytest
from support.units import array
from support.units import sequences

from keras_linrec import layers

pytestmark = pytest.mark.weekly("jax", "tensorflow")

PUBLIC = [
    value
    for value in vars(layers).values()
    # Those take a layer, or a cell.
    if inspect.isclass(value)
    and value not in (layers.Bidirectional, layers.RNN)
]
FEATURES = (1, 3, 7)


def train(unit, features):
    """Two steps of training; the largest change of each of its weights."""
    model = keras.Sequential([unit, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    inputs = sequences(12, features=features)
    model.build(inputs.shape)
    before = [array(weight).copy() for weight in unit.trainable_variables]
    targets = np.ones(model.compute_output_shape(inputs.shape), "float32")
    model.fit(inputs, targets, batch_size=1, verbose=0)
    assert all(np.isfinite(array(weight)).all() for weight in unit.weights)
    return {
        weight.name: np.abs(array(weight) - value).max()
        for weight, value in zip(unit.trainable_variables, before, strict=True)
        # It is 1 or -1, and changes when many steps have added up.
        if weight.name != "sign"
    }


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("layer", PUBLIC, ids=lambda layer: layer.__name__)
def test_a_layer_of_units_alone_trains_every_weight(layer, features):
    unit = layer(8)
    if layer.__name__.endswith("Cell"):
        unit = layers.RNN(unit)
    changes = train(unit, features)
    assert changes and min(changes.values()) > 0, changes


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize(
    "unit",
    [
        lambda: layers.RotRNN(8, state_size=100),
        lambda: layers.RotRNN(state_size=32),
        lambda: layers.OrthogonalRNN(4),
    ],
    ids=["RotRNN-100", "RotRNN-32", "OrthogonalRNN-4"],
)
def test_sizes_that_follow_from_others_train(unit, features):
    changes = train(unit(), features)
    assert changes and min(changes.values()) > 0, changes
