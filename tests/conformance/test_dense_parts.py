"""LoRA and 8-bit integers for the Dense layers around a unit."""

import keras
import numpy as np
import pytest
from selection import standing_for_all
from support.conformance_cases import EAGERLY
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import assert_close
from support.conformance_cases import made
from support.units import REPRESENTATIVE
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec.models import SequenceClassifier

pytestmark = [
    pytest.mark.capability("LoRA, int8 around it"),
    pytest.mark.weekly("jax", "tensorflow"),
]


def classifier(name):
    # Of a model, blocks and all: the encoder and the head are Dense.
    unit = made(name, units=3)
    model = SequenceClassifier(3, num_layers=1, units=3, unit=unit)
    model(sequences(6))
    return model


@EVERY_LAYER
def test_low_rank_updates_train_alone_and_merge_into_a_file(name, tmp_path):
    model = classifier(name)
    model.blocks[0].trainable = False
    model.norm.trainable = False
    for part in (model.encoder, model.head):
        part.enable_lora(2)
        part.bias.trainable = False
    assert len(model.trainable_variables) == 4
    before = [array(w) for w in model.blocks[0].unit.weights]
    inputs = sequences(6)
    model.compile(
        keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", **EAGERLY
    )
    model.fit(inputs, np.array([0, 2]), epochs=2, verbose=0)
    assert_close(model.blocks[0].unit.weights, before, 0.0)
    assert np.abs(array(model.head.lora_kernel_b)).max() > 0

    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    # Without the optimizer: what is frozen is no part of a configuration.
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert_close(loaded.predict(inputs, verbose=0), expected, 1e-5)


# Keras says of each layer that it leaves that it left it; from 3.16 on, of all
# at once.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.filterwarnings("ignore:.* do not support quantization")
@pytest.mark.parametrize("name", standing_for_all(UNITS, REPRESENTATIVE, ()))
def test_dense_parts_are_quantised_and_the_unit_is_left(name, tmp_path):
    model = classifier(name)
    inputs = sequences(6)
    expected = model.predict(inputs, verbose=0)
    before = [array(w) for w in model.blocks[0].unit.weights]
    model.quantize("int8")
    for part in (model.encoder, model.head):
        assert part.quantization_mode == "int8"
        assert keras.backend.standardize_dtype(part._kernel.dtype) == "int8"
    assert_close(model.blocks[0].unit.weights, before, 0.0)
    got = model.predict(inputs, verbose=0)
    assert 0 < np.abs(got - expected).max() < 0.05

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded.predict(inputs, verbose=0), got, 1e-5)
