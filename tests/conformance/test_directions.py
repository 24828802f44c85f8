"""From the end to the start, and both ways."""

import keras
import numpy as np
import pytest
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import MASKS
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.conformance_cases import twin
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import sequences

from keras_linrec import layers

pytestmark = pytest.mark.capability("`go_backwards`, `Bidirectional`")


@EVERY_LAYER_AND_CELL
def test_going_backwards_reads_the_reversed_sequence(name):
    layer = built(name, return_state=True)
    inputs, mask = sequences(9, batch=3), MASKS["holes"]
    backwards = twin(layer, go_backwards=True)
    assert_close(
        backwards(inputs, mask=mask),
        layer(inputs[:, ::-1].copy(), mask=mask[:, ::-1].copy()),
    )


@EVERY_LAYER
def test_the_mask_of_outputs_from_the_end_is_in_their_order(name):
    layer = built(name, go_backwards=True, return_sequences=True)
    inputs = sequences(9)
    inputs[:, 6:] = 0.0
    model = keras.Sequential(
        [keras.layers.Masking(), layer, keras.layers.GlobalAveragePooling1D()]
    )
    assert_close(model(inputs), array(layer(inputs[:, :6])).mean(axis=1))


@EVERY_LAYER
def test_what_reads_from_the_end_does_not_stream(name):
    layer = built(name, go_backwards=True)
    with pytest.raises(ValueError, match="go_backwards=True"):
        layer.step(sequences(9)[:, 0], initial_states(layer))


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_LAYER_AND_CELL
def test_bidirectional_equals_both_ways_by_hand(name, return_sequences, masked):
    # Keras 3.16 drops the mask in its own wrapper.
    wrapper = layers.Bidirectional if masked else keras.layers.Bidirectional
    layer = wrapper(
        made(name, return_sequences=return_sequences, return_state=True)
    )
    inputs = sequences(9, batch=3)
    mask = MASKS["holes"] if masked else None
    outputs, *states = layer(inputs, mask=mask)
    forward, *forward_states = layer.forward_layer(inputs, mask=mask)
    backward, *backward_states = layer.backward_layer(inputs, mask=mask)
    backward = array(backward)
    if return_sequences:
        if masked:
            forward = array(forward) * mask[:, :, None]
            backward = backward * mask[:, ::-1, None]
        backward = backward[:, ::-1]
    elif masked:
        forward = array(forward) * mask[:, -1:]
        backward = backward * mask[:, :1]
    expected = np.concatenate([array(forward), backward], axis=-1)
    got_states = [*forward_states, *backward_states]
    if return_sequences or not masked:
        assert_close([outputs, *states], [expected, *got_states])
    else:
        assert_close(states, got_states)


def test_bidirectional_rotrnn_is_two_that_share_all_but_the_output():
    layer = built("rotrnn", bidirectional=True)
    inputs = sequences(20)
    *shared, forward, backward, feedthrough = (
        layer.theta,
        layer.gamma_log,
        layer.rotation_kernel,
        layer.input_kernel,
        layer.output_kernel,
        layer.backward_output_kernel,
        layer.feedthrough,
    )
    total = 0.0
    for kernel, direct, step in (
        (forward, feedthrough, 1),
        (backward, feedthrough * 0.0, -1),
    ):
        one = UNITS["rotrnn"]()
        one.build(inputs.shape)
        for weight, value in zip(one.weights, (*shared, kernel, direct)):
            weight.assign(value)
        total = total + array(one(inputs[:, ::step].copy()))[:, ::step]
    assert_close(layer(inputs), total)
    with pytest.raises(ValueError, match="bidirectional=True"):
        layer.step(inputs[:, 0], initial_states(layer))


def test_the_two_directions_of_a_rotrnn_start_apart():
    layer = UNITS["rotrnn"](bidirectional=True)
    layer.build((None, None, 3))
    difference = array(layer.output_kernel) - array(
        layer.backward_output_kernel
    )
    assert np.abs(difference).max() > 0.01
