"""Layers that keep their states from one batch to the next."""

import keras
import numpy as np
import pytest
from support.conformance_cases import EAGERLY
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import assert_close
from support.conformance_cases import stateful_model
from support.conformance_cases import twin
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import sequences

pytestmark = pytest.mark.capability("`stateful`")


@EVERY_LAYER
def test_predict_continues_where_the_last_batch_ended(name):
    model, layer = stateful_model(name)
    inputs = sequences(30)
    expected = array(twin(layer, stateful=False)(inputs))
    first = model.predict(inputs[:, :11], verbose=0)
    second = model.predict(inputs[:, 11:], verbose=0)
    assert_close(np.concatenate([first, second], axis=1), expected)
    layer.reset_state()
    assert_close(model.predict(inputs[:, :11], verbose=0), first)
    # Two batches of one call follow one another too.
    layer.reset_state()
    stacked = np.concatenate([inputs[:, :15], inputs[:, 15:]])
    both = model.predict(stacked, batch_size=2, verbose=0)
    assert_close(np.concatenate([both[:2], both[2:]], axis=1), expected)


@EVERY_LAYER
def test_fit_and_evaluate_continue_where_the_last_batch_ended(name):
    model, layer = stateful_model(name, return_state=False)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    inputs = sequences(12)
    targets = np.zeros((2, 12, 4), "float32")
    for start in (0, 4, 8):
        part = slice(start, start + 4)
        model.fit(inputs[:, part], targets[:, part], shuffle=False, verbose=0)
    other = twin(layer, stateful=False, return_state=True)
    _, *expected = other(inputs)
    assert_close([state.value for state in layer.states], expected)
    model.evaluate(-inputs, targets, verbose=0)
    _, *expected = other(-inputs, initial_state=expected)
    assert_close([state.value for state in layer.states], expected)


@EVERY_LAYER
def test_training_learns(name):
    model, _ = stateful_model(name, **UNITS[name].forgetful)
    model.compile(keras.optimizers.Adam(0.01), "mse", **EAGERLY)
    inputs = sequences(12)
    targets = np.cumsum(inputs, axis=1)[..., :1] * np.ones(4, "float32")
    history = model.fit(inputs, targets, epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert np.isfinite(history).all()


@EVERY_LAYER
def test_states_can_be_set(name):
    model, layer = stateful_model(name)
    inputs, states = sequences(5), initial_states(layer)
    other = twin(layer, stateful=False)
    layer.reset_state(states)
    assert_close(
        model.predict(inputs, verbose=0), other(inputs, initial_state=states)
    )
    layer.reset_states()
    assert np.abs(array(layer.states[0])).max() == 0
    with pytest.raises(ValueError, match="a batch of 3"):
        layer.reset_state(initial_states(layer, batch=3))
    with pytest.raises(ValueError, match="stateful=False"):
        other.reset_state()


@EVERY_LAYER
def test_a_batch_that_does_not_fit_is_named(name):
    with pytest.raises(ValueError, match="needs a fixed batch size"):
        UNITS[name](stateful=True)(keras.Input((None, 3)))
    _, layer = stateful_model(name)
    with pytest.raises(ValueError, match="Received: a batch of 3"):
        layer(sequences(5, batch=3))


@EVERY_LAYER
def test_a_ragged_batch_is_refused(name):
    model, _ = stateful_model(name, batch=3)
    # Each framework has an error of its own.
    with pytest.raises(Exception, match="(?i)batch|shape|size|incompatible"):
        model.predict(sequences(9, batch=1), batch_size=1, verbose=0)


def test_states_are_given_to_a_layer_that_is_built():
    layer = UNITS["lru"](stateful=True)
    # There is nothing to reset yet.
    layer.reset_state()
    with pytest.raises(ValueError, match="once it is built"):
        layer.reset_state([np.ones((2, 6), "float32")] * 2)
    inputs = sequences(5)
    layer(inputs)
    given = initial_states(layer)
    layer.reset_state(given)
    expected = twin(layer, stateful=False)(inputs, initial_state=given)
    assert_close(layer(inputs), expected)
