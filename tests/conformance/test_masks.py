"""Masks: a step that is masked does not happen."""

import keras
import numpy as np
import pytest
from support.conformance_cases import CELLS
from support.conformance_cases import EVERY_FORM_AND_CELL
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import EVERY_MASK
from support.conformance_cases import MASKS
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import definition
from support.conformance_cases import made
from support.conformance_cases import twin
from support.units import array
from support.units import initial_states
from support.units import sequences

pytestmark = pytest.mark.capability("masks of any pattern")


def trimmed(name, layer, inputs, mask, states):
    """The definition of each row by itself, without its masked steps."""
    outputs = np.zeros((*mask.shape, layer.compute_output_shape((1, 9, 3))[-1]))
    finals = [state.astype("float64") for state in states]
    for row, counts in enumerate(mask):
        if not counts.any():
            continue
        got, *final = definition(
            name,
            layer,
            inputs[row : row + 1, counts],
            [state[row : row + 1] for state in states],
        )
        for whole, part in zip(finals, final):
            whole[row] = part[0]
        position = np.cumsum(counts) - 1
        seen = position >= 0
        outputs[row, seen] = got[0][position[seen]]
    return [outputs, *finals]


@EVERY_MASK
@EVERY_FORM_AND_CELL
def test_masked_equals_trimmed(name, form, mask):
    layer = built(name, return_state=True, **form)
    inputs = sequences(9, batch=3)
    states = initial_states(layer, batch=3)
    outputs, *finals = layer(inputs, initial_state=states, mask=mask)
    if name in CELLS:
        # Before the first step that counts, Keras' loop gives zeros or, on
        # JAX, the initial state.
        happened = mask.cumsum(1)[:, :, None] > 0
        outputs = np.where(happened, array(outputs), 0.0)
    plain = twin(layer, return_state=False)
    expected = trimmed(name, plain, inputs, mask, states)
    assert_close([outputs, *finals], expected)


@EVERY_FORM_AND_CELL
def test_a_mask_works_without_states_too(name, form):
    mask = MASKS["holes"]
    layer = built(name, **form)
    inputs = sequences(9, batch=3)
    states = [np.zeros_like(s) for s in initial_states(layer, batch=3)]
    expected = trimmed(name, layer, inputs, mask, states)[0]
    assert_close(layer(inputs, mask=mask), expected)


@EVERY_MASK
@EVERY_LAYER_AND_CELL
def test_the_last_output_is_that_of_the_last_step_that_counts(name, mask):
    layer = built(name)
    inputs = sequences(9, batch=3)
    last = twin(layer, return_sequences=False)
    assert_close(last(inputs, mask=mask), layer(inputs, mask=mask)[:, -1])


@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_LAYER_AND_CELL
def test_masked_outputs_are_zero_on_demand(name, return_sequences):
    mask = MASKS["holes"]
    layer = built(name, return_state=True)
    inputs = sequences(9, batch=3)
    zeroed = twin(
        layer, zero_output_for_mask=True, return_sequences=return_sequences
    )
    outputs, *states = layer(inputs, mask=mask)
    expected = array(outputs) * mask[:, :, None]
    expected = expected if return_sequences else expected[:, -1]
    assert_close(zeroed(inputs, mask=mask), [expected, *states])


@EVERY_FORM_AND_CELL
def test_what_a_masked_step_holds_is_never_read(name, form):
    mask = MASKS["holes"]
    layer = built(name, return_state=True, **form)
    inputs = sequences(9, batch=3)
    spoiled = np.where(mask[:, :, None], inputs, np.nan)
    assert_close(layer(spoiled, mask=mask), layer(inputs, mask=mask), 0.0)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
@EVERY_LAYER
def test_a_mask_of_any_dtype_is_read(name, dtype):
    layer = built(name)
    inputs = sequences(9, batch=3)
    expected = layer(inputs, mask=MASKS["holes"])
    assert_close(layer(inputs, mask=MASKS["holes"].astype(dtype)), expected)


@EVERY_LAYER
def test_the_mask_of_an_earlier_layer_is_used_and_handed_on(name):
    tokens = np.array([[5, 3, 0, 0], [0, 2, 0, 1]])
    embedding = keras.layers.Embedding(6, 3, mask_zero=True)
    layer = built(name, return_state=True)
    embedded = embedding(tokens)
    outputs, *states = layer(embedded)
    expected = layer(array(embedded), mask=tokens != 0)
    assert_close([outputs, *states], expected)
    assert np.array_equal(array(outputs._keras_mask), tokens != 0)


@EVERY_LAYER
def test_a_mask_is_used_beside_an_initial_state(name):
    """Where Keras no longer hands it to the layer."""
    tokens = np.array([[5, 3, 0, 0], [0, 2, 0, 1]])
    embedded = keras.layers.Embedding(6, 3, mask_zero=True)(tokens)
    layer = built(name, return_state=True)
    start = initial_states(layer)
    assert_close(
        layer(embedded, initial_state=start),
        layer(array(embedded), initial_state=start, mask=tokens != 0),
    )


@EVERY_LAYER_AND_CELL
def test_a_functional_model_hands_the_mask_on(name):
    tokens = np.array([[5, 3, 0, 0, 1], [0, 2, 0, 1, 0], [0, 0, 0, 0, 1]])
    inputs = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(6, 3, mask_zero=True)
    unit, pooling = made(name), keras.layers.GlobalAveragePooling1D()
    model = keras.Model(inputs, pooling(unit(embedding(inputs))))
    hidden = array(unit(array(embedding(tokens)), mask=tokens != 0))
    counts = (tokens != 0)[:, :, None]
    expected = (hidden * counts).sum(axis=1) / counts.sum(axis=1)
    assert_close(model.predict(tokens, verbose=0), expected)


@EVERY_LAYER
def test_a_compiled_model_with_an_initial_state_uses_the_mask(name):
    layer = built(name, return_state=True)
    inputs = keras.Input((None, 3))
    start = [keras.Input(shape) for shape in layer.state_shapes]
    masked = keras.layers.Masking()(inputs)
    model = keras.Model([inputs, *start], layer(masked, initial_state=start))
    data, states = sequences(9, batch=3), initial_states(layer, batch=3)
    data[:, 5:] = 0
    got = model.predict([data, *states], verbose=0)
    expected, *finals = layer(data[:, :5].copy(), initial_state=states)
    assert_close(got[0][:, :5], expected)
    assert_close(got[0][:, 8], expected[:, 4])
    assert_close(got[1:], finals)


@EVERY_LAYER
def test_a_mask_that_does_not_fit_is_named(name):
    layer = built(name)
    for shape in ((3, 8), (1, 9), (3, 9, 1)):
        with pytest.raises(ValueError, match="`mask` should have the shape"):
            layer(sequences(9, batch=3), mask=np.ones(shape, bool))
