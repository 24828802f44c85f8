"""Steps that are not of one length, for the units in continuous time."""

import numpy as np
import pytest
from selection import standing_for_all
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import definition
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import sequences
from support.units import time_deltas_of

pytestmark = pytest.mark.capability("irregular steps, `time_deltas`")
IN_CONTINUOUS_TIME = pytest.mark.parametrize(
    "name",
    standing_for_all(
        [name for name, unit in UNITS.items() if unit.takes_time_deltas],
        ("lipschitz_rnn",),
    ),
)


@IN_CONTINUOUS_TIME
def test_steps_of_any_length_equal_the_definition(name):
    layer = built(name, return_state=True)
    inputs, states = sequences(9), initial_states(layer)
    got = layer(inputs, initial_state=states, time_deltas=time_deltas_of(9))
    expected = definition(
        name,
        layer,
        inputs,
        states,
        time_deltas=time_deltas_of(9).astype("float64"),
    )
    assert_close(got, list(expected))


@IN_CONTINUOUS_TIME
def test_masked_steps_take_no_time(name):
    layer = built(name, return_state=True)
    inputs, time_deltas = sequences(9), time_deltas_of(9)
    mask = np.tile(np.arange(9) % 3 > 0, (2, 1))
    outputs, *states = layer(inputs, mask=mask, time_deltas=time_deltas)
    kept, *expected = layer(
        inputs[:, mask[0]], time_deltas=time_deltas[:, mask[0]]
    )
    assert_close([outputs[:, -1], *states], [kept[:, -1], *expected])


@IN_CONTINUOUS_TIME
def test_streaming_takes_the_length_of_each_step(name):
    layer = built(name, return_state=True)
    inputs, time_deltas = sequences(9), time_deltas_of(9)
    expected = layer(inputs, time_deltas=time_deltas)
    states, outputs = layer.get_initial_state(2), []
    for step in range(9):
        output, states = layer.step(
            inputs[:, step], states, time_deltas=time_deltas[:, step]
        )
        outputs.append(array(output))
    assert_close([np.stack(outputs, 1), *states], list(expected))


@IN_CONTINUOUS_TIME
def test_lengths_of_a_wrong_shape_are_named(name):
    with pytest.raises(ValueError, match="`time_deltas` should .* Received"):
        built(name)(sequences(9), time_deltas=time_deltas_of(8))
