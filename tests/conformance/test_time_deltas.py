"""Steps that are not of one length, for the units in continuous time."""

import numpy as np
import pytest
from selection import standing_for_all
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import definition
from support.layer_gradients import errors_of_gradients
from support.layer_gradients import gradients_of
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


EVERY_FORM = pytest.mark.parametrize(
    ("name", "form"),
    standing_for_all(
        [
            (name, form)
            for name, unit in UNITS.items()
            for form in unit.forms
            if unit.takes_time_deltas and "bidirectional" not in form
        ],
        [("lipschitz_rnn", {})],
    ),
    ids=str,
)


@IN_CONTINUOUS_TIME
@pytest.mark.parametrize("time", [1, 37])
def test_steps_of_any_length_equal_the_definition(name, time):
    layer = built(name, return_state=True)
    inputs, states = sequences(time), initial_states(layer)
    lengths = time_deltas_of(time)
    got = layer(inputs, initial_state=states, time_deltas=lengths)
    expected = definition(
        name, layer, inputs, states, time_deltas=lengths.astype("float64")
    )
    assert_close(got, list(expected))


@IN_CONTINUOUS_TIME
def test_gradients_through_steps_of_any_length_equal_the_definitions(name):
    layer = built(name, return_state=True)
    inputs, states = sequences(7), initial_states(layer)
    lengths = time_deltas_of(7) + 0.1
    fixed = {w.name: array(w) for w in layer.non_trainable_variables}

    def define(weights, inputs, *states, time_deltas):
        return definition(
            name,
            layer,
            inputs,
            states,
            weights={**fixed, **weights},
            time_deltas=time_deltas,
        )

    for argument, error in errors_of_gradients(
        layer, define, inputs, *states, time_deltas=lengths
    ).items():
        assert error < 1e-4, argument


@EVERY_FORM
def test_steps_of_length_one_are_the_steps_without_lengths(name, form):
    layer = built(name, return_state=True, **form)
    inputs, states = sequences(70), initial_states(layer)
    plain = layer(inputs, initial_state=states)
    ones = np.ones((2, 70), "float32")
    assert_close(layer(inputs, initial_state=states, time_deltas=ones), plain)


@EVERY_FORM
def test_steps_of_no_length_leave_the_states(name, form):
    layer = built(name, return_state=True, **form)
    inputs, states = sequences(9), initial_states(layer)
    plain = layer(inputs, initial_state=states)
    lengths = np.tile(np.float32([0.0, 1.0]), (2, 9))
    outputs, *final = layer(
        np.repeat(inputs, 2, axis=1), initial_state=states, time_deltas=lengths
    )
    assert_close([outputs[:, 1::2], *final], list(plain))
    _, after = layer.step(
        inputs[:, 0], states, time_deltas=np.zeros(2, "float32")
    )
    assert_close(after, states, 0.0)


@IN_CONTINUOUS_TIME
def test_gradients_are_finite_where_no_time_passes(name):
    layer = built(name)
    gradients = gradients_of(
        layer,
        sequences(5),
        *initial_states(layer),
        time_deltas=np.zeros((2, 5), "float32"),
    )
    for argument, slopes in gradients.items():
        assert np.isfinite(slopes).all(), argument
    assert np.abs(gradients["time_deltas"]).max() > 0


@IN_CONTINUOUS_TIME
def test_masked_steps_take_no_time(name):
    layer = built(name, return_state=True)
    inputs, time_deltas = sequences(9), time_deltas_of(9)
    mask = np.tile(np.arange(9) % 3 > 0, (2, 1))
    outputs, *states = layer(inputs, mask=mask, time_deltas=time_deltas)
    expected = layer(inputs[:, mask[0]], time_deltas=time_deltas[:, mask[0]])
    assert_close([array(outputs)[:, mask[0]], *states], list(expected))


@IN_CONTINUOUS_TIME
def test_streaming_takes_the_length_of_each_step(name):
    layer = built(name, return_state=True)
    inputs, lengths = sequences(9), time_deltas_of(9)
    options = {"step_rescale": 0.5} if hasattr(layer, "step_rescale") else {}
    expected = layer(inputs, time_deltas=lengths, **options)
    # After a chunk.
    chunk, states = layer.call_with_states(
        inputs[:, :5],
        layer.get_initial_state(2),
        time_deltas=lengths[:, :5],
        **options,
    )
    outputs = list(np.moveaxis(array(chunk), 1, 0))
    for step in range(5, 9):
        output, states = layer.step(
            inputs[:, step], states, time_deltas=lengths[:, step], **options
        )
        outputs.append(array(output))
    assert_close([np.stack(outputs, 1), *states], list(expected))


@IN_CONTINUOUS_TIME
def test_lengths_of_a_wrong_shape_are_named(name):
    layer = built(name)
    message = "`time_deltas` should .* Received"
    for shape in ((2,), (2, 8), (3, 9), (2, 9, 1)):
        with pytest.raises(ValueError, match=message):
            layer(sequences(9), time_deltas=np.ones(shape, "float32"))
    with pytest.raises(ValueError, match=message):
        layer.step(
            sequences(1)[:, 0],
            layer.get_initial_state(2),
            time_deltas=np.ones((2, 1), "float32"),
        )
