"""What is saved, what is not, and what does not fit."""

import h5py
import keras
import numpy as np
import pytest
from support.conformance_cases import EVERY_FORM_AND_CELL
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import assert_close
from support.conformance_cases import made
from support.conformance_cases import sequential
from support.conformance_cases import stateful_model
from support.conformance_cases import twin
from support.units import UNITS
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("`.keras` and weights files")


@EVERY_FORM_AND_CELL
def test_a_saved_model_predicts_the_same(name, form, tmp_path):
    model = sequential(made(name, **form), keras.layers.Dense(2))
    inputs = sequences(9)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(inputs), expected, 1e-6)


@EVERY_LAYER
def test_states_are_no_part_of_a_file(name, tmp_path):
    model, layer = stateful_model(name)
    model.predict(sequences(5), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = sequential(UNITS[name]())
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(
        other.predict(sequences(5), verbose=0),
        twin(layer, stateful=False)(sequences(5)),
    )
    assert np.abs(array(layer.states[0])).max() > 0


@EVERY_LAYER
def test_a_file_of_other_weights_is_named(name, tmp_path):
    model = sequential(UNITS[name]())
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        (layer,) = file["layers"].values()
        first = model.layers[0].weights[0].name
        layer["vars"].move(first, "something_else")
    with pytest.raises(ValueError, match=f"weights .*{first}.*something_else"):
        model.load_weights(path)
