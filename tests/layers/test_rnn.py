"""`layers.RNN`: Keras' loop over a cell, which keeps masks."""

import keras
import numpy as np
import pytest
from support.autodiff import relative_error
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec import layers
from keras_linrec.layers import RNN
from keras_linrec.layers import LipschitzRNNCell
from keras_linrec.models import ResidualBlock

TOKENS = np.array([[5, 3, 0, 0, 1], [0, 2, 0, 1, 0]])
FORMS = [
    {"go_backwards": True, "return_state": True},
    {"zero_output_for_mask": True, "return_sequences": True, "unroll": True},
]


def embedded():
    return keras.layers.Embedding(6, 3, mask_zero=True)(TOKENS)


@pytest.mark.parametrize("form", FORMS, ids=["backwards", "unrolled"])
def test_it_computes_what_keras_loop_does(form):
    cells = [LipschitzRNNCell(4), keras.layers.LSTMCell(4)]
    layer = RNN(cells, **form)
    config = layer.get_config()
    of_keras = keras.layers.RNN.from_config(config)
    # Keras 3.16 reads a mask, and warns.
    of_keras.supports_masking = True
    inputs, mask = array(embedded()), TOKENS != 0
    layer.build(inputs.shape)
    of_keras.build(inputs.shape)
    randomise(layer)
    for one, other in zip(of_keras.weights, layer.weights, strict=True):
        one.assign(array(other))
    got, expected = (
        keras.tree.flatten(one(inputs, mask=mask)) for one in (layer, of_keras)
    )
    for one, other in zip(got, expected, strict=True):
        assert relative_error(array(one), array(other)) < 1e-6


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("lipschitz_rnn", {"solver": "rk2"}),
        ("lipschitz_rnn", {"gated": True, "alpha": 0.5}),
        ("antisymmetric_rnn", {"gamma": 0.2}),
        ("orthogonal_rnn", {"units": 5, "reflections": 5}),
        ("orthogonal_rnn", {"units": 12, "field": "complex"}),
        ("orthogonal_rnn", {"units": 6, "activation": "modrelu"}),
        ("orthogonal_rnn", {"units": 6, "train_initial_state": True}),
    ],
    ids=str,
)
def test_a_cell_in_keras_loop_is_its_layer(name, form):
    layer = UNITS[name](**form)
    layer.build((2, 6, 3))
    randomise(layer)
    cls = getattr(layers, f"{type(layer).__name__}Cell")
    arguments = {"units": 4, **UNITS[name].arguments, **form}
    del arguments["return_sequences"]
    cell = cls(**arguments)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    rnn.build((2, 6, 3))
    cell.set_weights(layer.get_weights())
    inputs = sequences(6)
    assert relative_error(array(rnn(inputs)), array(layer(inputs))) < 1e-5
    other = keras.layers.deserialize(keras.layers.serialize(rnn))
    assert other.cell.get_config() == cell.get_config()


def test_the_mask_of_an_earlier_layer_is_used_and_handed_on():
    layer = RNN(LipschitzRNNCell(4), return_sequences=True, return_state=True)
    inputs, start = embedded(), np.ones((2, 4), "float32")
    for options in ({}, {"initial_state": [start]}):
        outputs, state = layer(inputs, **options)
        assert np.array_equal(array(outputs._keras_mask), TOKENS != 0)
        assert getattr(state, "_keras_mask", None) is None
        _, expected = layer(array(inputs), mask=TOKENS != 0, **options)
        assert relative_error(array(state), array(expected)) < 1e-6


def test_a_saved_model_has_it_again(tmp_path):
    layer = RNN(LipschitzRNNCell(4), return_sequences=True)
    model = keras.Sequential([keras.Input((None, 3)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is RNN
    inputs = sequences(5)
    assert relative_error(array(loaded(inputs)), array(model(inputs))) < 1e-6


def test_a_block_hands_the_mask_to_a_unit_of_keras_and_on():
    unit = keras.layers.GRU(3, return_sequences=True)
    outputs = ResidualBlock(unit)(embedded())
    assert np.array_equal(array(outputs._keras_mask), TOKENS != 0)
