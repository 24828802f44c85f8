"""The stability of an LSSL, and measures with parameters."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops
from support.autodiff import relative_error
from support.says_so import says
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec import constraints
from keras_linrec.initializers import HiPPO
from keras_linrec.layers import LSSL
from keras_linrec.ops.structured.hippo import hippo


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt"])
def test_constraints_leave_the_measures_as_they_are(measure):
    plain, kept = (
        UNITS["lssl"](measure=measure, stable_transition=stable)
        for stable in (False, True)
    )
    for layer in (plain, kept):
        layer.build((None, None, 3))
    for one, other in zip(plain.weights, kept.weights):
        if other.constraint is not None:
            expected = array(other)
            got = array(other.constraint(ops.convert_to_tensor(one)))
            assert np.allclose(got, expected, atol=1e-6)
    assert kept.spectrum().dissipative


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt"])
def test_constraints_keep_the_transition_stable(measure):
    layer, kept = (
        LSSL(state_size=12, measure=measure, stable_transition=stable)
        for stable in (False, True)
    )
    for one in (layer, kept):
        one.build((None, None, 3))
    generator = np.random.default_rng(0)
    for weight in layer.weights:
        noise = generator.standard_normal(weight.shape)
        if weight.name == "transition_t":
            noise[[0, 2], -1] = 0
        weight.assign(weight + 0.5 * noise)
    unstable = not layer.spectrum().dissipative
    for weight, other in zip(layer.weights, kept.weights):
        if other.constraint is not None:
            weight.assign(other.constraint(ops.convert_to_tensor(weight)))
    assert unstable
    spectrum = layer.spectrum()
    assert spectrum.dissipative
    assert spectrum.continuous.real.max() < 1e-5
    assert np.abs(spectrum.discrete).max() < 1 + 1e-6


def test_training_with_constraints_stays_stable():
    keras.utils.set_random_seed(0)
    inputs = sequences(30, batch=8)
    free, kept = (
        LSSL(4, state_size=8, dt_min=0.1, dt_max=1.0, stable_transition=stable)
        for stable in (False, True)
    )
    for layer in (free, kept):
        model = keras.Sequential([keras.Input((30, 3)), layer])
        model.compile(keras.optimizers.SGD(1.0, clipnorm=1.0), "mse")
        model.fit(inputs, np.ones((8, 30, 4)), epochs=20, verbose=0)
    assert kept.spectrum().dissipative
    assert not free.spectrum().dissipative


def test_the_spectrum_of_legs_is_that_of_its_diagonal():
    layer = LSSL(state_size=5, alpha=0.5, step_rescale=2.0)
    layer.build((None, None, 2))
    spectrum = layer.spectrum()
    assert np.allclose(np.sort(spectrum.continuous.real), -np.arange(5, 0, -1))
    half = np.exp(array(layer.log_timescale))[:, None]
    expected = (1 + half * spectrum.continuous) / (
        1 - half * spectrum.continuous
    )
    assert np.allclose(spectrum.discrete, expected)


def test_a_spectrum_needs_a_transition():
    with pytest.raises(ValueError, match="Received: built=False"):
        LSSL(state_size=5).spectrum()
    layer = LSSL(state_size=5)
    layer.build((None, None, 2))
    layer.transition_t.assign(0.0 * layer.transition_t)
    with pytest.raises(ValueError, match="`transition_t` .* Received"):
        layer.spectrum()


def test_the_spectrum_shows_an_unstable_transition():
    layer = LSSL(state_size=5)
    layer.build((None, None, 2))
    layer.transition_p.assign(-layer.transition_p)
    spectrum = layer.spectrum()
    assert spectrum.continuous.real.max() > 0
    assert np.abs(spectrum.discrete).max() > 1
    assert not spectrum.dissipative


@pytest.mark.parametrize("uneven", [False, True])
def test_an_unstable_layer_says_so(uneven):
    layer = LSSL(state_size=5, dt_min=0.4, dt_max=0.5, name="wild")
    inputs = sequences(400)
    layer.build(inputs.shape)
    layer.transition_p.assign(-layer.transition_p)
    lasting = {"time_deltas": np.ones((2, 400), "float32")} if uneven else {}
    message = "'wild' grows beyond all bounds"
    with says(message):
        array(layer(inputs, **lasting))


def test_a_stable_layer_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        UNITS["lssl"]()(sequences(100))


def test_contractive_bands_have_a_spectral_norm_of_at_most_one():
    generator = np.random.default_rng(0)
    bands = generator.standard_normal((3, 9))
    bands[[0, 2], -1] = 0
    above, diagonal, below = array(constraints.ContractiveBands()(bands))
    matrix = (
        np.diag(diagonal) + np.diag(above[:-1], 1) + np.diag(below[:-1], -1)
    )
    assert np.linalg.norm(np.eye(9) - matrix, 2) <= 1 + 1e-6
    assert above[-1] == below[-1] == 0


# Measures with parameters.


def test_a_measure_with_parameters_is_saved_and_loaded(tmp_path):
    measure = HiPPO("generalized_laguerre", order=0.5, tilt=1.0)
    layer = UNITS["lssl"](measure=measure)
    model = keras.Sequential([keras.Input((None, 3)), layer])
    expected = array(model(sequences(20)))
    start = hippo("generalized_laguerre", 6, order=0.5, tilt=1.0)
    assert np.allclose(array(layer.input_vector), start.b, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert again.layers[-1].measure.get_config() == measure.get_config()
    assert relative_error(array(again(sequences(20))), expected) < 1e-6
