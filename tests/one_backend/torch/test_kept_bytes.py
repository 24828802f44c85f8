"""What PyTorch keeps for the gradient, beside what `models.cost` expects."""

import keras
import numpy as np
import pytest
import torch

from keras_linrec.models import SequenceClassifier
from keras_linrec.models import cost
from keras_linrec.models.units import UNITS

pytestmark = pytest.mark.rest

BATCH, TIME = 4, 1000
# Its transfer functions in chunks, which do not grow with the batch.
WITH_KERNELS = {"s4d": 2.5}


@pytest.mark.parametrize("unit", UNITS)
def test_a_model_keeps_what_it_costs(unit):
    model = SequenceClassifier(
        5, num_layers=2, units=32, unit=unit, unit_arguments={"units": 32}
    )
    model.build((None, None, 3))
    sequences = torch.rand(BATCH, TIME, 3)
    weights = {one.value.untyped_storage().data_ptr() for one in model.weights}
    kept = kept_by(lambda: model(sequences, training=True), weights)
    expected = cost(model, BATCH, TIME).kept_bytes
    most = WITH_KERNELS.get(unit, 1.3)
    assert 0.75 < kept / expected < most


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_a_recurrent_layer_of_keras_keeps_what_it_costs(kind):
    layer = getattr(keras.layers, kind)(24, return_sequences=True)
    model = keras.Sequential([layer, keras.layers.Dense(2)])
    model.build((None, None, 16))
    sequences = torch.rand(BATCH, 100, 16)
    weights = {one.value.untyped_storage().data_ptr() for one in model.weights}
    kept = kept_by(lambda: model(sequences, training=True), weights)
    expected = cost(model, BATCH, 100).kept_bytes
    assert kept == pytest.approx(expected, rel=0.05)


def kept_by(call, without):
    """The bytes of what is saved for the gradient, each once."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        # Held, so that no other takes its place.
        storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        call()
    return int(
        np.sum(
            [
                storage.nbytes()
                for place, storage in storages.items()
                if place not in without
            ]
        )
    )
