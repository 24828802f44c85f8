"""16 bits in and out, and a recurrence that stays in 32."""

import keras
import numpy as np
import pytest
from support.conformance_cases import EAGERLY
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.conformance_cases import twin
from support.units import sequences

pytestmark = pytest.mark.capability("`mixed_bfloat16`, `mixed_float16`")
EVERY_POLICY = pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "mixed_float16"]
)


@EVERY_POLICY
@EVERY_LAYER
def test_4096_steps_keep_the_recurrence_in_float32(name, policy):
    layer = built(name, return_state=True)
    inputs = sequences(4096)
    # 16 bits hold the inputs exactly, so that only the outputs are rounded.
    rounded = keras.ops.cast(
        keras.ops.cast(inputs, policy[len("mixed_") :]), "float32"
    )
    outputs, *states = layer(rounded)
    half = twin(layer, dtype=policy)
    half_outputs, *half_states = half(
        keras.ops.cast(rounded, policy[len("mixed_") :])
    )
    assert_close(half_states, states, 1e-6)
    half_outputs = keras.ops.cast(half_outputs, "float32")
    assert_close(half_outputs, outputs, 2**-8)
    for weight in half.weights:
        assert weight.dtype == "float32"
    # And states are handed on as they are.
    chunk, *_ = half(rounded[:, :5], initial_state=states)
    whole, *_ = layer(rounded[:, :5], initial_state=states)
    assert_close(keras.ops.cast(chunk, "float32"), whole, 2**-8)


@EVERY_LAYER_AND_CELL
def test_training_learns(name):
    model = keras.Sequential([made(name, units=8, dtype="mixed_bfloat16")])
    model.compile("adam", "mse", **EAGERLY)
    inputs = sequences(20, batch=8)
    targets = inputs.sum(axis=-1, keepdims=True) * np.ones(8, "float32")
    history = model.fit(inputs, targets, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert all(weight.dtype == "float32" for weight in model.weights)


@EVERY_POLICY
@EVERY_LAYER
def test_dtypes_are_known_before_the_call(name, policy):
    layer = made(name, return_state=True, dtype=policy)
    symbolic = layer(keras.Input((None, 3)))
    for spec, value in zip(symbolic, layer(sequences(7)), strict=True):
        assert spec.dtype == keras.backend.standardize_dtype(value.dtype)
    assert symbolic[0].dtype == layer.compute_dtype
    assert symbolic[1].dtype == "float32"
