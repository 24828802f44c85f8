"""One step at a time, as a stream comes."""

import re

import numpy as np
import pytest
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.units import UNITS
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("one step at a time")


# With as many outputs as inputs, some weights are vectors.
@pytest.mark.parametrize("units", [4, 3])
@EVERY_LAYER
def test_steps_equal_the_whole(name, units):
    layer = built(name, units=units, return_state=True)
    inputs = sequences(50)
    expected = layer(inputs)
    states, outputs = layer.get_initial_state(batch_size=2), []
    for step in range(50):
        output, states = layer.step(inputs[:, step], states)
        outputs.append(array(output))
    assert_close([np.stack(outputs, 1), *states], list(expected))


@EVERY_LAYER
def test_a_step_builds_the_layer_where_its_states_allow(name):
    layer = UNITS[name]()
    if not UNITS[name].knows_its_states:
        with pytest.raises(ValueError, match="build or call it before"):
            layer.get_initial_state(2)
        return
    output, _ = layer.step(
        np.zeros((2, 3), "float32"), layer.get_initial_state(2)
    )
    assert tuple(output.shape) == (2, 4)


@EVERY_LAYER
def test_what_a_stream_computes_ahead_changes_no_step(name):
    layer = built(name)
    ahead = layer.step_constants()
    assert ahead is not None
    states = kept = layer.get_initial_state(batch_size=2)
    for inputs in np.moveaxis(sequences(3), 1, 0):
        expected, kept = layer.step(inputs, kept)
        output, states = layer.step(inputs, states, constants=ahead)
        assert_close([output, *states], [expected, *kept])


@EVERY_LAYER
def test_a_state_of_another_batch_is_named(name):
    layer = built(name)
    with pytest.raises(ValueError, match=re.escape("shapes (3, ")):
        layer.step(sequences(1, batch=3)[:, 0], layer.get_initial_state(1))
