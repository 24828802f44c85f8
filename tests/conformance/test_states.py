"""States in and out: the parts of a sequence are the whole."""

import re

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import relative_error
from support.conformance_cases import EVERY_FORM_AND_CELL
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import EVERY_LAYER_AND_FORM
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import definition
from support.conformance_cases import twin
from support.units import array
from support.units import initial_states
from support.units import sequences
from support.units import state_shapes

pytestmark = pytest.mark.capability("in chunks, with states in and out")


@EVERY_LAYER_AND_CELL
def test_chunks_equal_the_whole(name):
    layer = built(name, return_state=True)
    inputs = sequences(33)
    expected = layer(inputs, initial_state=initial_states(layer))
    states, outputs = initial_states(layer), []
    for chunk in np.split(inputs, [16, 17], axis=1):
        output, *states = layer(chunk, initial_state=states)
        outputs.append(array(output))
    assert_close([np.concatenate(outputs, 1), *states], list(expected))


# With as many outputs as inputs, some weights are vectors.
@pytest.mark.parametrize("units", [4, 3])
@EVERY_LAYER_AND_CELL
def test_the_last_output_alone_is_the_last_of_all(name, units):
    layer = built(name, units=units, return_state=True)
    # More than one block of steps.
    inputs, states = sequences(70), initial_states(layer)
    outputs, *finals = layer(inputs, initial_state=states)
    last = twin(layer, return_sequences=False)
    got = last(inputs, initial_state=states)
    assert_close(got, [outputs[:, -1], *finals])
    alone = twin(layer, return_sequences=False, return_state=False)
    assert_close(alone(inputs), layer(inputs)[0][:, -1])


@EVERY_LAYER_AND_CELL
def test_gradients_through_chunks_equal_those_through_the_whole(name):
    """From final states to initial states, inputs and every weight."""
    layer = built(name, return_state=True)
    inputs, states = sequences(8), initial_states(layer)
    weights = [array(weight) for weight in layer.trainable_variables]
    count = len(weights)

    def run(chunks):
        def through(tensors):
            states = list(tensors[count + 1 :])
            outputs = []
            for chunk in keras.ops.split(tensors[count], chunks, axis=1):
                (output, *states), _ = layer.stateless_call(
                    tensors[:count],
                    layer.non_trainable_variables,
                    chunk,
                    initial_state=states,
                )
                outputs.append(output)
            return [keras.ops.concatenate(outputs, axis=1), *states]

        return through

    arguments = [*weights, inputs, *states]
    generator = np.random.default_rng(2)
    cotangents = [
        generator.standard_normal(shape)
        for shape in ((2, 8, 4), *(part.shape for part in states))
    ]
    whole = backend_gradients(run(1), arguments, cotangents)
    parts = backend_gradients(run(2), arguments, cotangents)
    for one, other in zip(parts, whole, strict=True):
        assert np.abs(other).max() > 0
        assert relative_error(one, other) < 1e-4


@EVERY_LAYER
def test_chunks_between_steps_equal_the_whole(name):
    layer = built(name)
    inputs = sequences(9)
    mask = np.ones((2, 6), bool)
    mask[1, 2:4] = False

    def in_parts(given):
        states = layer.get_initial_state(2)
        first, states = layer.step(given[0][:, 0], states)
        chunk, states = layer.call_with_states(given[0][:, 1:7], states, mask)
        rest, states = layer.call_with_states(given[0][:, 7:], states)
        parts = keras.ops.expand_dims(first, 1), chunk, rest
        return [keras.ops.concatenate(parts, axis=1), *states]

    got = compiled(in_parts)([inputs])
    whole = twin(layer, return_state=True)
    mask = np.concatenate([np.ones((2, 1)), mask, np.ones((2, 2))], 1) > 0
    expected = compiled(lambda given: whole(given[0], mask=mask))([inputs])
    assert_close(got, list(expected))
    # And the layer is as it was.
    assert layer.compute_output_shape((2, 9, 3)) == (2, 9, 4)
    assert not layer.return_state


def test_what_cannot_go_on_from_states_says_so():
    inputs = sequences(4)
    for form in (
        {"return_sequences": False},
        {"go_backwards": True},
        {"bidirectional": True},
    ):
        layer = built("rotrnn", **form)
        (argument,) = form
        with pytest.raises(ValueError, match=f"Received:.*{argument}"):
            layer.call_with_states(inputs, layer.get_initial_state(2))


@EVERY_FORM_AND_CELL
def test_one_step_is_a_sequence(name, form):
    layer = built(name, return_state=True, **form)
    inputs, states = sequences(1), initial_states(layer)
    expected = definition(name, layer, inputs, states)
    assert_close(layer(inputs, initial_state=states), list(expected))


@EVERY_LAYER_AND_CELL
def test_without_states_they_are_zero(name):
    layer = built(name)
    inputs = sequences(5)
    zeros = [np.zeros((2, *shape), "float32") for shape in state_shapes(layer)]
    assert_close(layer(inputs), layer(inputs, initial_state=zeros), 1e-6)


@EVERY_LAYER_AND_FORM
def test_states_that_do_not_fit_are_named(name, form):
    layer = built(name, **form)
    states = [state[:, :-1] for state in initial_states(layer)]
    with pytest.raises(ValueError, match="has states of the shapes"):
        layer(sequences(5), initial_state=states)


@EVERY_LAYER
def test_a_state_of_another_batch_is_named(name):
    layer = built(name)
    with pytest.raises(ValueError, match=re.escape("shapes (3, ")):
        layer(
            sequences(9, batch=3),
            initial_state=initial_states(layer, batch=1),
        )
