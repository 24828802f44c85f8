"""What LSSL does beyond what every sequence unit does."""

import warnings

import keras
import numpy as np
import pytest
from selection import WEEKLY
from selection import standing_for_all
from support.autodiff import relative_error
from support.units import UNITS
from support.units import array
from support.units import in_steps
from support.units import initial_states
from support.units import randomise
from support.units import sequences
from support.units import weights_of

FIXED = {"trainable_transition": False, "trainable_timescale": False}


def durations(time):
    """How long steps last: some long, some short, some not at all."""
    generator = np.random.default_rng([5, time])
    return generator.choice([0.0, 0.3, 1.0, 2.5], (2, time)).astype("float32")


def built(inputs, **arguments):
    layer = UNITS["lssl"](**arguments)
    layer.build(inputs.shape)
    return randomise(layer)


def copy_weights(layer, other):
    """By name: which weights are trained sets their order."""
    values = weights_of(layer)
    for weight in other.weights:
        weight.assign(values[weight.name])


# Steps that differ in length.


def test_a_functional_model_takes_the_lengths_of_its_steps():
    inputs = keras.Input((None, 3))
    lasting = keras.Input((None,))
    layer = UNITS["lssl"]()
    model = keras.Model([inputs, lasting], layer(inputs, time_deltas=lasting))
    model.compile("sgd", "mse")
    data = [sequences(20), durations(20)]
    expected = array(layer(data[0], time_deltas=data[1]))
    assert relative_error(model.predict(data, verbose=0), expected) < 1e-5
    model.fit(data, np.zeros((2, 20, 4), "float32"), verbose=0)
    assert np.isfinite(model.predict(data, verbose=0)).all()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="others know the number of steps when they run",
)
def test_an_unknown_number_of_steps_may_differ_in_length():
    import tensorflow as tf

    layer = UNITS["lssl"]()
    inputs, lasting = sequences(40), durations(40)
    layer.build(inputs.shape)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, 3)),
            tf.TensorSpec((None, None)),
        ]
    )
    def gradient(inputs, lasting):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, time_deltas=lasting)
        return outputs, tape.gradient(outputs, inputs)

    outputs, slopes = gradient(inputs, lasting)
    expected = array(layer(inputs, time_deltas=lasting))
    assert relative_error(array(outputs), expected) < 1e-6
    assert np.isfinite(array(slopes)).all() and np.abs(slopes).max() > 0


def test_reading_backwards_takes_each_step_with_its_length():
    inputs, lasting = sequences(7), durations(7)
    layer = built(inputs, go_backwards=True)
    got = array(layer(inputs, time_deltas=lasting))
    layer.go_backwards = False
    expected = array(layer(inputs[:, ::-1], time_deltas=lasting[:, ::-1]))
    assert relative_error(got, expected) < 1e-6


def test_symbolic_states_come_by_position():
    outputs = UNITS["lssl"]()(keras.Input((9, 3)), [keras.Input((3, 6))])
    assert outputs.shape == (None, 9, 4)


def test_steps_of_another_length_compute_nothing_of_what_was_ahead():
    layer, inputs = UNITS["lssl"](), sequences(9)
    layer.build(inputs.shape)
    ahead = layer.step_constants()
    states = [np.ones((2, 3, 6), "float32")]
    for lasting in (
        {"time_deltas": np.array([0.5, 2.0], "float32")},
        {"step_rescale": 3.0},
    ):
        expected, _ = layer.step(inputs[:, 0], states, **lasting)
        got, _ = layer.step(inputs[:, 0], states, ahead, **lasting)
        own, _ = layer.step(inputs[:, 0], states, ahead)
        assert (array(got) == array(expected)).all()
        assert np.abs(array(got) - array(own)).max() > 1e-4


# The scale of all time_deltas.


def test_the_scale_is_a_shift_of_the_log_timescales():
    inputs = sequences(50)
    layer = built(inputs)
    by_call = array(layer(inputs, step_rescale=3.0))
    layer.step_rescale = 3.0
    by_layer = array(layer(inputs))
    layer.step_rescale = 1.0
    layer.log_timescale.assign(layer.log_timescale + np.log(3.0))
    expected = array(layer(inputs))
    assert relative_error(by_call, expected) < 1e-5
    assert relative_error(by_layer, expected) < 1e-5


@pytest.mark.parametrize("fixed", [False, True])
def test_a_compiled_model_sees_a_new_scale(fixed):
    layer = UNITS["lssl"](**(FIXED if fixed else {}))
    model = keras.Sequential([keras.Input((40, 3)), layer])
    inputs = sequences(40)
    before = model.predict(inputs, verbose=0)
    layer.step_rescale = 2.0
    after = model.predict(inputs, verbose=0)
    assert relative_error(after, before) > 1e-2
    expected = array(layer(inputs))
    assert relative_error(after, expected) < 1e-5


def test_the_scale_is_part_of_the_configuration_and_of_no_file(tmp_path):
    layer = UNITS["lssl"](step_rescale=2.0)
    model = keras.Sequential([keras.Input((None, 3)), layer])
    inputs = sequences(30)
    expected = array(layer(inputs))
    assert "step_rescale" not in [w.name for w in layer.weights]
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.saving.load_model(path, compile=False)
    assert again.layers[-1].step_rescale == 2.0
    assert relative_error(array(again(inputs)), expected) < 1e-6


# Systems that are not trained.


@pytest.mark.parametrize("time", [1, 40])
def test_a_fixed_layer_equals_one_that_is_not(time):
    layer, other = UNITS["lssl"](**FIXED), UNITS["lssl"]()
    for one in (layer, other):
        one.build((2, time, 3))
    randomise(layer)
    copy_weights(layer, other)
    inputs = sequences(time)
    got, expected = array(layer(inputs)), array(other(inputs))
    assert relative_error(got, expected) < 1e-5


def test_a_fixed_layer_trains_its_other_weights_as_any_layer_does():
    inputs = sequences(40)
    targets = np.random.default_rng(1).standard_normal((2, 40, 4))
    layer, other = built(inputs, **FIXED), built(inputs)
    copy_weights(layer, other)
    before = weights_of(layer)
    for one in (layer, other):
        model = keras.Sequential([keras.Input((40, 3)), one])
        model.compile("sgd", "mse")
        model.train_on_batch(inputs, targets)
    after, expected = weights_of(layer), weights_of(other)
    for name in before:
        change = after[name] - before[name]
        if name in ("output_matrix", "feedthrough", "kernel", "bias"):
            wanted = expected[name] - before[name]
            assert relative_error(change, wanted) < 1e-3
        else:
            assert not change.any()


@pytest.mark.parametrize(
    "name",
    ["log_timescale", "transition_t", "input_vector"],
)
def test_a_fixed_layer_follows_its_weights(name):
    layer = UNITS["lssl"](**FIXED)
    inputs = sequences(40)
    model = keras.Sequential([keras.Input((40, 3)), layer])
    before = model.predict(inputs, verbose=0)
    weight = getattr(layer, name)
    weight.assign(weight * 1.1)
    other = UNITS["lssl"]()
    other.build((2, 40, 3))
    copy_weights(layer, other)
    expected = array(other(inputs))
    assert relative_error(expected, before) > 1e-4
    assert relative_error(model.predict(inputs, verbose=0), expected) < 1e-5
    assert relative_error(array(layer(inputs)), expected) < 1e-5


@pytest.mark.parametrize("place", ["inputs", "states"])
def test_a_row_of_nan_leaves_the_others_at_steps_of_any_length(place):
    inputs = sequences(9)
    layer = built(inputs)
    states = initial_states(layer)
    options = {"initial_state": states, "time_deltas": durations(9)}
    expected = array(layer(inputs, **options))
    if place == "inputs":
        inputs[0, 4] = np.nan
    else:
        states[0][0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = array(layer(inputs, **options))
    assert np.isnan(got[0, -1]).all()
    assert relative_error(got[1], expected[1]) < 1e-6


@pytest.mark.parametrize("states", [False, True])
def test_an_outlier_leaves_earlier_outputs(states):
    plain = sequences(60)
    layer = built(plain, return_state=states)
    mask = np.random.default_rng(0).random((2, 60)) < 0.7
    mask[0, 8] = True
    given = {"initial_state": initial_states(layer)} if states else {}

    def outputs_of(inputs, **options):
        outputs = layer(inputs, **given, **options)
        return array(outputs[0] if states else outputs)

    for options in ({}, {"mask": mask}):
        expected = outputs_of(plain, **options)
        for outlier in (1e3, 1e6, 1e30, np.nan, np.inf):
            inputs = plain.copy()
            inputs[0, 8, 1] = outlier
            got = outputs_of(inputs, **options)
            assert relative_error(got[0, :8], expected[0, :8]) < 1e-6
            assert relative_error(got[1], expected[1]) < 1e-6
            is_finite = np.isfinite(got[0, 8:])
            assert (
                is_finite.all()
                if np.isfinite(outlier)
                else (not is_finite.any())
            )


def test_whole_sequences_equal_steps_where_the_response_grows():
    keras.utils.set_random_seed(1)
    layer = UNITS["lssl"](2, state_size=8)
    inputs = np.random.default_rng(0).standard_normal((1, 100, 3))
    inputs = inputs.astype("float32")
    layer.build(inputs.shape)
    layer.log_timescale.assign(np.full(3, np.log(0.025)))
    # An eigenvalue of Abar is far above 1.
    layer.transition_d.assign(layer.transition_d - 1.15)
    expected, _ = in_steps(layer, inputs[:, :60])
    assert np.abs(expected).max() > 1e2 * np.abs(expected[:, :20]).max()
    broken = inputs.copy()
    broken[:, 20] = np.nan
    # Rounding of A grows as the response does.
    for given, steps, most in (
        (inputs, 60, 5e-5),
        (inputs, 20, 2e-6),
        (broken, 20, 2e-6),
    ):
        got = array(layer(given))[:, :steps]
        assert relative_error(got, expected[:, :steps]) < most


@pytest.mark.parametrize(
    "spike", standing_for_all([-1e4, 1e8], [-1e4], part=WEEKLY)
)
@pytest.mark.rest
def test_an_outlier_that_is_forgotten_leaves_later_outputs(spike):
    layer = UNITS["lssl"](
        1, state_size=8, dt_min=0.1, dt_max=0.5, activation="tanh"
    )
    inputs = np.random.default_rng(1).standard_normal((1, 600, 1))
    inputs = inputs.astype("float32")
    inputs[0, 100] = spike
    got = array(layer(inputs))
    expected, _ = in_steps(layer, inputs)
    assert np.abs(got - expected)[:, 400:].max() < 2e-6


@pytest.mark.parametrize("options", ["states", "deltas"])
def test_a_row_of_huge_numbers_leaves_the_others(options):
    inputs = sequences(9)
    layer = built(inputs)
    given = (
        {"initial_state": initial_states(layer)}
        if options == "states"
        else {"time_deltas": durations(9)}
    )
    expected = array(layer(inputs, **given))
    inputs[0, 4] = 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = array(layer(inputs, **given))
    assert relative_error(got[1], expected[1]) < 1e-6
