"""LinOSS: how it starts, and what it conserves."""

import warnings

import numpy as np
import pytest
from definitions import linoss as definition
from support.layer_gradients import gradients_of
from support.says_so import says
from support.units import array
from support.units import initial_states
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import LinOSS

FORMS = {
    "imex": {},
    "im": {"discretization": "im"},
    "damped": {"damping": True},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def built(features=3, **arguments):
    layer = LinOSS(4, **arguments)
    layer.build((None, None, features))
    return layer


def blocks_of(layer):
    """The 2 x 2 blocks of a step, by the definition."""
    weights = weights_of(layer)
    stiffness = weights["stiffness"]
    blocks, _ = definition.blocks(
        stiffness,
        weights.get("friction", 0 * stiffness),
        np.exp(weights["log_timescale"]),
        layer.discretization,
    )
    return blocks


def test_weights_start_in_the_ranges_of_the_authors_code():
    weights = weights_of(built(features=50, state_size=500))
    assert 0 <= weights["stiffness"].min() < weights["stiffness"].max() <= 1
    assert abs(weights["stiffness"].mean() - 0.5) < 0.05
    timescale = np.exp(weights["log_timescale"])
    assert 0.5 - 1e-6 < timescale.min() < 0.51
    assert 0.72 < timescale.max() < 0.73 + 1e-6
    for name, fan_in in (("input_real", 50), ("output_imag", 500)):
        limit = fan_in**-0.5
        assert 0.95 * limit < np.abs(weights[name]).max() <= limit * 1.000001
        assert abs(weights[name].var() * 3 * fan_in - 1) < 0.1


def test_a_damped_layer_starts_uniform_on_a_ring():
    layer = built(
        state_size=2000, damping=True, r_min=0.5, r_max=0.9, theta_max=2.0
    )
    eigenvalues = np.linalg.eigvals(blocks_of(layer))[:, 0]
    modulus, angle = np.abs(eigenvalues), np.abs(np.angle(eigenvalues))
    assert 0.5 - 1e-4 <= modulus.min() < modulus.max() <= 0.9 + 1e-4
    assert angle.max() <= 2.0 + 1e-3
    for numbers, ends in ((modulus**2, (0.25, 0.81)), (angle, (0, 2))):
        counts, _ = np.histogram(numbers, 5, ends)
        assert np.abs(counts / 400 - 1).max() < 0.2


# Where A is 0 or less, and where a step would diverge.
EDGES = [-1.0, 0.0, 1e-12, 1e-5, 3.0, 15.999, 16.0, 1e3]


@EVERY_FORM
def test_the_edges_of_oscillation_equal_the_definition(form):
    layer = built(
        state_size=8, return_state=True, dt_min=0.5, dt_max=0.5001, **form
    )
    layer.log_timescale.assign(np.full(8, np.log(0.5)))
    layer.stiffness.assign(EDGES)
    if layer.damping:
        layer.friction.assign([0.0, 0.1, 1.0, -1.0, 0.1, 0.1, 0.1, 0.1])
    # Near dt^2 A = 4, the rounding of dt turns the step after long enough.
    inputs, states = sequences(50), initial_states(layer)
    got = layer(inputs, initial_state=states)
    expected = definition.linoss(
        weights_of(layer),
        inputs.astype("float64"),
        *(state.astype("float64") for state in states),
        discretization=layer.discretization,
    )
    for one, other in zip(got, expected):
        assert np.abs(array(one) - other).max() < 2e-4 * np.abs(other).max()


@EVERY_FORM
def test_gradients_are_finite_at_the_edges(form):
    layer = built(state_size=8, **form)
    layer.stiffness.assign(EDGES)
    for options in ({}, {"time_deltas": np.zeros((2, 5), "float32")}):
        gradients = gradients_of(layer, sequences(5), **options)
        for name, slopes in gradients.items():
            assert np.isfinite(slopes).all(), name
        # Out of bounds, and so without effect.
        assert gradients["stiffness"][0] == 0
        if layer.discretization == "imex":
            assert gradients["stiffness"][-1] == 0


def test_an_undamped_oscillator_conserves_its_energy():
    """z^2 - dt A x z + A x^2, for 10,000 steps (LinOSS, section 2.2)."""
    layer = built(state_size=8, return_state=True)
    states = initial_states(layer)
    weights = weights_of(layer)
    a, dt = weights["stiffness"], np.exp(weights["log_timescale"])

    def energy(states):
        real_x, imag_x, real_z, imag_z = map(array, states)
        return sum(
            z**2 - dt * a * x * z + a * x**2
            for x, z in ((real_x, real_z), (imag_x, imag_z))
        )

    silence = np.zeros((2, 10_000, 3), "float32")
    _, *after = layer(silence, initial_state=states)
    assert np.abs(energy(after) / energy(states) - 1).max() < 2e-3


@EVERY_FORM
def test_no_step_lets_a_state_grow_whatever_the_weights(form):
    layer = built(state_size=64, **form)
    generator = np.random.default_rng(0)
    for weight in layer.trainable_variables:
        if weight.name in ("stiffness", "friction", "log_timescale"):
            weight.assign(3 * generator.standard_normal(64))
    eigenvalue = layer.step_constants().eigenvalue()
    assert np.hypot(*map(array, eigenvalue)).max() < 1 + 1e-6
    if "damping" not in form:
        return
    friction = np.maximum(weights_of(layer)["friction"], 0)
    timescale = np.exp(weights_of(layer)["log_timescale"])
    expected = (1 + timescale * friction) ** -0.5
    assert np.allclose(np.hypot(*map(array, eigenvalue)), expected, rtol=1e-5)


def test_oscillators_that_uneven_steps_excite_say_so():
    layer = LinOSS(4, damping=True, name="wild")
    inputs = np.random.default_rng(0).uniform(-1, 1, (1, 1500, 2))
    inputs = inputs.astype("float32")
    lengths = np.resize(np.float32([0.5, 1.5]), (1, 1500))
    message = "wild.{1,3} has states beyond 1e30"
    with says(message):
        array(layer(inputs, time_deltas=lengths))
    # What is given may be NaN.
    inputs[:, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        outputs = layer(inputs, time_deltas=lengths)
        assert np.isnan(array(outputs)).all()


def test_implicit_steps_do_not_grow_however_long_they_are():
    layer = LinOSS(4, discretization="im")
    random = np.random.default_rng(0)
    inputs = random.uniform(-1, 1, (1, 3000, 2)).astype("float32")
    lengths = random.uniform(0, 3, (1, 3000)).astype("float32")
    outputs = array(layer(inputs, time_deltas=lengths))
    assert np.abs(outputs[:, 1500:]).max() < 3 * np.abs(outputs[:, :1500]).max()
