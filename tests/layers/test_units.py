"""Every sequence unit against its float64 definition."""

import inspect
from itertools import combinations

import keras
import numpy as np
import pytest
from selection import COMPILING
from selection import standing_for_all
from support.autodiff import compiled
from support.autodiff import relative_error
from support.layer_gradients import arguments_of
from support.layer_gradients import errors_of_gradients
from support.layer_gradients import gradients_of
from support.units import REPRESENTATIVE
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import randomise
from support.units import sequences
from support.units import weights_of

LENGTHS = (1, 2, 3, 63, 500)


def at_lengths(lengths, others, selected):
    """Every form, the plain ones at all of the lengths.

    Where a framework compiles, the selection takes some of them.
    """
    return pytest.mark.parametrize(
        ("name", "form", "time"),
        [
            pytest.param(
                *(name, form, time),
                id="-".join([name, *(f"{k}={v}" for k, v in form.items())])
                + f"-{time}",
                marks=()
                if index < 2 and (form or time in selected)
                else pytest.mark.rest(*COMPILING),
            )
            for name, unit in UNITS.items()
            for index, form in enumerate(unit.forms)
            for time in (others if form else lengths)
        ],
    )


INITIALIZERS = (
    "kernel_initializer",
    "linear_initializer",
    "output_initializer",
    "recurrent_initializer",
)


def takes(name, argument):
    return argument in inspect.signature(UNITS[name].layer).parameters


EVERY_UNIT = pytest.mark.parametrize(
    "name", standing_for_all(UNITS, REPRESENTATIVE)
)
PAPER = pytest.mark.capability("outputs and gradients match the paper")


@PAPER
@at_lengths(LENGTHS, others=(63,), selected=(63,))
def test_outputs_and_final_states_equal_the_definition(name, form, time):
    layer = UNITS[name](return_state=True, **form)
    inputs = sequences(time)
    layer.build(inputs.shape)
    randomise(layer)
    states = initial_states(layer)

    def run(arguments):
        return layer(arguments[0], initial_state=arguments[1:])

    got = compiled(run)([inputs, *states])
    expected = UNITS[name].defined(
        form,
        weights_of(layer),
        *(a.astype("float64") for a in (inputs, *states)),
    )
    tolerance = UNITS[name].tolerance + 2e-7 * time
    for one, other in zip(got, expected, strict=True):
        assert relative_error(array(one), other) < tolerance


@PAPER
@at_lengths((1, 7), others=(7,), selected=(7,))
def test_every_gradient_equals_that_of_the_definition(name, form, time):
    form = UNITS[name].limited(form)
    layer = UNITS[name](return_state=True, **form)
    inputs = sequences(time)
    layer.build(inputs.shape)
    randomise(layer)
    states = initial_states(layer)
    if getattr(layer, "sign", None) is not None:
        layer.sign.assign(-1.0)
    every = weights_of(layer)

    def define(weights, *given):
        return UNITS[name].defined(form, {**every, **weights}, *given)

    errors = errors_of_gradients(layer, define, inputs, *states)
    for argument, error in errors.items():
        assert error < 1e-4, argument


@PAPER
@EVERY_UNIT
def test_gradients_over_500_steps_equal_those_of_the_definition(name):
    form = UNITS[name].smooth
    layer = UNITS[name](**form)
    inputs = sequences(500)
    layer.build(inputs.shape)
    randomise(layer)
    generator = np.random.default_rng(2)
    cotangent = generator.standard_normal((2, 500, 4))
    gradients = gradients_of(layer, inputs, cotangents=[cotangent])
    given = arguments_of(layer, inputs.astype("float64"))

    def loss(*moved):
        *weights, inputs = {**given, **dict(moved)}.items()
        outputs, *_ = UNITS[name].defined(form, dict(weights), inputs[1])
        return np.sum(outputs * cotangent)

    for argument, slopes in gradients.items():
        # One random direction a weight: all entries would take the plain
        # definition minutes.
        direction = generator.standard_normal(slopes.shape)
        if argument == "transition_t":
            direction[[0, 2], -1] = 0
        above, below = (
            loss((argument, given[argument] + step * direction))
            for step in (1e-6, -1e-6)
        )
        expected = (above - below) / 2e-6
        size = np.sqrt(np.sum(slopes**2) * np.sum(direction**2))
        assert abs(np.sum(slopes * direction) - expected) < 1e-4 * size, (
            argument
        )


# In NumPy alone, the others take up to 35 s.
@PAPER
@pytest.mark.parametrize(
    "name", standing_for_all(UNITS, REPRESENTATIVE, backends=())
)
def test_100_000_steps_stay_accurate(name):
    keras.utils.set_random_seed(0)
    layer = UNITS[name](return_state=True)
    inputs = sequences(100_000, batch=1, features=1)
    layer.build(inputs.shape)
    got = layer(inputs)
    expected = UNITS[name].defined(
        {}, weights_of(layer), inputs.astype("float64")
    )
    for one, other in zip(got, expected):
        assert relative_error(array(one), other) < UNITS[name].long_tolerance


@pytest.mark.parametrize("trained", [False, True], ids=["initial", "moved"])
@pytest.mark.rest("jax", "tensorflow")
def test_expected_squared_state_norm_of_a_rotrnn_head_is_one(trained):
    layer = UNITS["rotrnn"](
        state_size=32, num_heads=4, gamma_max=0.99, return_state=True
    )
    inputs = sequences(1000, batch=400, features=5)
    layer.build(inputs.shape)
    if trained:
        for seed in range(5):
            randomise(layer, seed)
        layer.input_kernel.assign(layer.input_kernel * 7.0)
    _, state = layer(inputs)
    norms = np.square(array(state).reshape(400, 4, 8)).sum(-1)
    # 400 rows and 8 states a head leave 2.5% of chance.
    assert np.abs(norms.mean() - 1) < 0.05
    assert np.abs(norms.mean(axis=0) - 1).max() < 0.12


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("lssl", ["trainable_transition", "trainable_timescale"]),
        ("s4d", ["trainable_transition", "trainable_timescale"]),
        ("s5", ["trainable_timescale"]),
    ],
)
def test_what_is_fixed_is_not_trained(name, fixed):
    layer = UNITS[name](**dict.fromkeys(fixed, False))
    layer.build((None, None, 3))
    of_the_transition = ("transition", "input_vector") * (len(fixed) == 2)
    for weight in layer.weights:
        is_fixed = weight.name.startswith(("log_timescale", *of_the_transition))
        assert weight.trainable != is_fixed, weight.name


@pytest.mark.parametrize(
    "name",
    # RotRNN draws each head apart, with a seed too: test_diagonal_layers.py.
    [n for n in UNITS if takes(n, "kernel_initializer") and n != "rotrnn"],
)
def test_a_seed_gives_every_kernel_numbers_of_its_own_again(name):
    first, again = (drawn_kernels(name) for _ in range(2))
    for kernel, numbers in first.items():
        assert (numbers == again[kernel]).all(), kernel
    for one, other in combinations(first.values(), 2):
        size = min(one.size, other.size)
        assert (one.ravel()[:size] != other.ravel()[:size]).all()


def drawn_kernels(name):
    """By name, those that a seeded initializer fills, in the largest form."""
    seeded = keras.initializers.RandomNormal(seed=1)
    given = {"gated": True, "bidirectional": True}
    given |= dict.fromkeys(INITIALIZERS, seeded)
    given = {key: value for key, value in given.items() if takes(name, key)}
    layer = UNITS[name](seed=3, **given)
    layer.build((None, None, 3))
    kernels = ["gate_kernel", "linear_kernel", "recurrent_kernel"]
    kernels += ["backward_output_real", "backward_output_imag"]
    kernels += UNITS[name].kernels
    return {n: w for n, w in weights_of(layer).items() if n in kernels}


@pytest.mark.parametrize("name", UNITS)
def test_the_docstring_names_every_weight(name):
    text = "".join(base.__doc__ or "" for base in UNITS[name].layer.__mro__)
    for form in UNITS[name].forms:
        layer = UNITS[name](**form)
        layer.build((None, None, 3))
        missing = {w.name for w in layer.weights if f"`{w.name}`" not in text}
        assert not missing, form


@pytest.mark.rest("jax", "tensorflow")
def test_rotrnn_starts_in_the_ranges_it_is_given():
    layer = UNITS["rotrnn"](
        state_size=400,
        num_heads=100,
        gamma_min=0.9,
        gamma_max=0.95,
        theta_max=0.3,
    )
    layer.build((None, None, 3))
    weights = weights_of(layer)
    gamma = np.exp(-np.exp(weights["gamma_log"]))
    assert gamma.min() >= 0.9 - 1e-5 and gamma.max() <= 0.95 + 1e-5
    assert gamma.max() - gamma.min() > 0.03
    assert weights["theta"].min() >= 0 and weights["theta"].max() <= 0.3
    assert weights["theta"].max() > 0.25


@pytest.mark.rest("jax", "tensorflow")
def test_lssl_starts_in_the_range_of_timescales_it_is_given():
    layer = UNITS["lssl"](dt_min=0.01, dt_max=0.02)
    layer.build((None, None, 100))
    timescale = np.exp(weights_of(layer)["log_timescale"])
    assert timescale.min() >= 0.01 - 1e-6 and timescale.max() <= 0.02 + 1e-6
    assert timescale.max() - timescale.min() > 0.005


@pytest.mark.parametrize("name", UNITS)
def test_wrong_sequences_are_named(name):
    with pytest.raises(ValueError, match="known number of features"):
        UNITS[name]()(keras.Input((None, None)))
    with pytest.raises(ValueError, match=r"1 or more.* shape=\(2, 5, 0\)"):
        UNITS[name]()(np.zeros((2, 5, 0), "float32"))
    with pytest.raises(ValueError, match="at least one time step"):
        UNITS[name]()(np.zeros((2, 0, 3), "float32"))
    with pytest.raises(ValueError, match="ndim"):
        UNITS[name]()(np.zeros((2, 3), "float32"))
    unit = UNITS[name]()
    unit.build((None, None, 3))
    states = unit.get_initial_state(2)
    # A single feature would be broadcast.
    for given in (np.zeros((2, 5, 1)), np.zeros((2, 5, 4))):
        with pytest.raises(ValueError, match="takes steps of 3 features"):
            unit.call_with_states(given.astype("float32"), states)


@pytest.mark.skipif(
    keras.backend.backend() != "jax",
    reason="it is about XLA's thread pool, where only JAX runs LAPACK",
)
@pytest.mark.parametrize("name", UNITS)
def test_no_lapack_call_waits_inside_xla(name):
    """Two batched ones at once wait for ever where XLA has two threads."""
    import jax

    layer = UNITS[name](return_state=True)
    layer.build((2, 9, 3))

    def loss(weights, inputs):
        (outputs, *_), _ = layer.stateless_call(
            weights, layer.non_trainable_variables, inputs
        )
        return outputs.sum()

    values = [weight.value for weight in layer.trainable_variables]
    program = str(jax.make_jaxpr(jax.grad(loss))(values, sequences(9)))
    for primitive in ("triangular_solve", "lu", "callback"):
        assert f" {primitive}[" not in program
    if name == "lssl":
        # The convolution, and so the whole layer, is part of the program.
        assert " fft[" in program or " keras_linrec_native" in program
