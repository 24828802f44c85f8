"""Functional, Sequential, subclassed and nested models, and their clones."""

import keras
import numpy as np
import pytest
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import made
from support.conformance_cases import sequential
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("models of every kind, `clone_model`")


@keras.saving.register_keras_serializable("keras_linrec_tests")
class Subclassed(keras.Model):
    """A model that holds a unit and calls it."""

    def __init__(self, unit, head, **kwargs):
        super().__init__(**kwargs)
        self.unit = unit
        self.head = head

    def call(self, inputs, training=False):
        return self.head(self.unit(inputs, training=training))

    def get_config(self):
        parts = {"unit": self.unit, "head": self.head}
        return {
            **super().get_config(),
            **{
                name: keras.saving.serialize_keras_object(part)
                for name, part in parts.items()
            },
        }

    @classmethod
    def from_config(cls, config):
        for name in ("unit", "head"):
            part = keras.saving.deserialize_keras_object(config[name])
            config = {**config, name: part}
        return cls(**config)


def functional(unit, head):
    inputs = keras.Input((None, 3))
    return keras.Model(inputs, head(unit(inputs)))


def nested(unit, head):
    """A model within a model within a model."""
    inputs = keras.Input((None, 3))
    return keras.Model(inputs, sequential(sequential(unit), head)(inputs))


KINDS = {
    "functional": functional,
    "sequential": sequential,
    "subclassed": Subclassed,
    "nested": nested,
}


@pytest.mark.parametrize("kind", KINDS)
@EVERY_LAYER
def test_a_model_gives_what_its_layers_give(name, kind):
    unit, head = made(name), keras.layers.Dense(3)
    model = KINDS[kind](unit, head)
    inputs = sequences(5)
    assert_close(model.predict(inputs, verbose=0), head(unit(inputs)), 1e-5)


@EVERY_LAYER_AND_CELL
def test_a_model_of_models_is_trained_and_saved(name, tmp_path):
    inner = nested(made(name), keras.layers.Dense(3))
    model = Subclassed(inner, keras.layers.Dense(3))
    model(sequences(9, batch=4))
    data = sequences(9, batch=4)
    before = model.get_weights()
    model.compile("adam", "mse")
    model.fit(data, data, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert (one != other).any()

    expected = model(data)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(data), expected, 1e-6)


@EVERY_LAYER_AND_CELL
def test_a_clone_is_the_same_model_with_weights_of_its_own(name):
    model = functional(made(name), keras.layers.Dense(3))
    clone = keras.models.clone_model(model)
    assert clone.layers[1].get_config() == model.layers[1].get_config()
    clone.set_weights(model.get_weights())
    inputs = sequences(5)
    expected = array(model(inputs))
    assert_close(clone(inputs), expected, 1e-6)
    for weight in clone.weights:
        weight.assign(np.zeros(weight.shape))
    assert_close(model(inputs), expected, 1e-6)
