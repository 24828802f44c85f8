"""Any batch and any length, in one model."""

import keras
import numpy as np
import pytest
from selection import WEEKLY
from selection import standing_for_all
from support.conformance_cases import EVERY_FORM_AND_CELL
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_FORM
from support.conformance_cases import MAKERS
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.needs_native import require_jit_compiler
from support.units import sequences


def train_at_several_lengths(name, form, lengths, jit_compile):
    inputs = keras.Input((None, 3))
    layer = made(name, units=5, **form)
    outputs = keras.layers.Dense(1)(layer(inputs))
    model = keras.Model(inputs, outputs)
    if jit_compile:
        require_jit_compiler()
    model.compile("adam", "mse", jit_compile=jit_compile)
    for time in lengths:
        # Trained in batches of two, and read in one of four.
        data = sequences(time, batch=4)
        before = layer.get_weights()
        model.fit(data, data[..., :1], batch_size=2, verbose=0)
        after = layer.get_weights()
        assert any((a != b).any() for a, b in zip(before, after))
        assert all(np.isfinite(weight).all() for weight in after)
        if jit_compile and name.endswith("_cell"):
            # XLA takes as long again for Keras' loop in a second program.
            continue
        assert_close(model.predict(data, verbose=0), model(data), 1e-3)


@pytest.mark.capability("any batch and length, from one step on")
@EVERY_FORM_AND_CELL
def test_a_model_trains_at_any_batch_and_length(name, form):
    train_at_several_lengths(name, form, (1, 70), False)


# Dynamo warns of PyTorch's own code while it traces.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.capability("`jit_compile=True`")
@pytest.mark.parametrize("name", standing_for_all(MAKERS, ("lru",), (), WEEKLY))
@pytest.mark.rest("torch")
def test_a_compiled_model_trains(name):
    train_at_several_lengths(name, {}, (6,), True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@EVERY_LAYER_AND_FORM
def test_a_compiled_model_trains_at_any_batch_and_length(name, form):
    train_at_several_lengths(name, form, (1, 70, 130), True)


@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_LAYER
def test_shapes_are_known_before_the_call(name, return_sequences):
    layer = made(name, return_sequences=return_sequences, return_state=True)
    symbolic = layer(keras.Input((None, 3)))
    real = layer(sequences(7))
    shape = (None, None, 4) if return_sequences else (None, 4)
    assert symbolic[0].shape == shape
    for spec, value in zip(symbolic, real, strict=True):
        assert len(spec.shape) == len(value.shape)
    assert layer.compute_output_shape((2, 7, 3))[0] == tuple(real[0].shape)


@EVERY_LAYER_AND_FORM
def test_shapes_are_known_before_the_layer_is_built(name, form):
    layer = made(name, return_state=True, **form)
    output, *states = layer.compute_output_shape((2, 5, 3))
    assert output == (2, 5, 4)
    built_layer = built(name, return_state=True, **form)
    assert states == [(2, *shape) for shape in built_layer.state_shapes]
