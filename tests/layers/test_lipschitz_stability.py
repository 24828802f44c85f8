"""LipschitzRNN with `stable_transition`, and what says that one is unstable."""

import warnings

import keras
import numpy as np
import pytest
from definitions.lipschitz_rnn import contractive_pair as defined_pair
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.conformance_cases import float64
from support.says_so import says
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec.analysis import StabilityMonitor
from keras_linrec.analysis import stability_certificate
from keras_linrec.layers import LipschitzRNN
from keras_linrec.ops.algebra.contractive_pair import contractive_pair

PAIRS = (0.7, 0.8), (0.01, 0.1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def built(scale=1.0, features=3, **arguments):
    """A stable unit whose M are random, of a given size."""
    keras.utils.set_random_seed(0)
    layer = LipschitzRNN(6, stable_transition=True, **arguments)
    layer.build((None, None, features))
    for seed, kernel in enumerate(
        (layer.linear_kernel, layer.recurrent_kernel)
    ):
        kernel.assign(scale * normal(6, 6, seed=seed))
    return layer


@pytest.mark.parametrize("step_size", [1e-3, 0.03, 1.0, 30.0])
@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_every_step_contracts_whatever_is_learnt(solver, step_size):
    """With each slope of the activation anywhere in [0, 1]."""
    rho = 1 / (1 + 0.01 * step_size)
    bound = rho if solver == "euler" else (1 + rho) / 2
    identity = np.eye(6)
    generator = np.random.default_rng(1)
    # Beyond 1e6, entries are cut off.
    for scale in (0.0, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e20):
        kernels = [
            (scale * normal(6, 6, seed=seed)).astype("float32")
            for seed in (0, 1)
        ]
        pair = contractive_pair(*kernels, *PAIRS, step_size, solver)
        linear, recurrent = (array(m).astype("float64") for m in pair)
        for _ in range(20):
            slopes = generator.uniform(-0.5, 1.5, (2, 6, 1)).clip(0, 1)
            first, second = step_size * (linear + slopes * recurrent)
            step = identity + first
            if solver == "rk2":
                step = identity + second @ (identity + first / 2)
            assert np.linalg.norm(step, 2) < bound + 1e-5


@pytest.mark.parametrize("step_size", [1e-6, 1e-3])
@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_short_steps_cost_no_digits(solver, step_size):
    kernels = normal(2, 6, 6).astype("float32")
    for scale in (0.0, 1.0):
        pair = contractive_pair(*scale * kernels, *PAIRS, step_size, solver)
        with float64():
            exact = contractive_pair(
                *scale * kernels.astype("float64"), *PAIRS, step_size, solver
            )
        for got, expected in zip(pair, exact):
            assert relative_error(array(got), array(expected)) < 2e-6


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_the_matrices_and_their_gradients_are_those_of_the_definition(solver):
    arguments = (*PAIRS, 0.5, solver, 0.7)
    weights = normal(2, 4, 4, seed=2)

    def loss(kernels):
        pair = contractive_pair(*kernels, *arguments)
        parts = zip(keras.ops.convert_to_tensor(weights), pair)
        return sum(keras.ops.sum(weight * part) for weight, part in parts)

    def defined(kernels):
        return np.sum(weights * defined_pair(*kernels, *arguments))

    for scale in (0.1, 1.0, 30.0):
        kernels = list(scale * normal(2, 4, 4))
        with float64():
            tensors = [keras.ops.convert_to_tensor(one) for one in kernels]
            got = [array(m) for m in contractive_pair(*tensors, *arguments)]
            slopes = [array(m) for m in compiled(gradient(loss))(tensors)]
        for one, other in zip(got, defined_pair(*kernels, *arguments)):
            assert relative_error(one, other) < 1e-12
        for index, seed in ((0, 3), (1, 4)):
            move = 1e-5 * scale * normal(4, 4, seed=seed)
            ends = []
            for sign in (1, -1):
                moved = list(kernels)
                moved[index] = kernels[index] + sign * move
                ends.append(defined(moved))
            difference = (ends[0] - ends[1]) / 2
            slope = np.sum(slopes[index] * move)
            assert abs(slope - difference) < 1e-6 * abs(difference) + 1e-11


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_two_trajectories_meet(solver):
    layer = built(3.0, solver=solver, step_size=0.2, gamma=0.5)
    inputs = np.repeat(sequences(200, batch=1), 2, axis=0)
    states = 10 * normal(2, 6).astype("float32")
    first, second = array(layer(inputs, initial_state=[states]))
    assert np.abs(first - second).max() < 1e-4


def test_shorter_steps_contract_too():
    layer = built(3.0, step_size=0.2, gamma=0.5)
    inputs = np.repeat(sequences(100, batch=1), 2, axis=0)
    deltas = np.random.default_rng(0).uniform(0, 1, (1, 100))
    deltas = np.repeat(deltas, 2, axis=0).astype("float32")
    states = 10 * normal(2, 6).astype("float32")
    first, second = array(
        layer(inputs, initial_state=[states], time_deltas=deltas)
    )
    before = np.linalg.norm(states[0] - states[1])
    decay = np.prod(1 + deltas[0] * (1 / 1.1 - 1))
    assert np.linalg.norm(first - second) <= before * decay + 1e-5


@pytest.mark.parametrize("solver", ["euler", "rk2"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_a_stable_unit_has_a_certificate(scale, solver):
    certificate = stability_certificate(built(scale, solver=solver, gamma=0.1))
    assert certificate.case_c and certificate.stable
    assert certificate.step_stable
    assert "(c) holds" in str(certificate)


def test_a_stable_unit_stays_stable_in_training():
    layer = built(step_size=0.3, trainable_step_size=True, gamma=0.1)
    model = keras.Sequential([keras.Input((9, 3)), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    before = array(layer.linear_kernel)
    history = model.fit(
        sequences(9, batch=8),
        10 * normal(8, 6).astype("float32"),
        epochs=3,
        verbose=0,
        callbacks=[StabilityMonitor()],
    )
    assert np.abs(array(layer.linear_kernel) - before).max() > 0.01
    assert history.history[f"{layer.name}/stable"] == [1.0] * 3


def test_a_stable_unit_is_saved(tmp_path):
    layer = built()
    model = keras.Sequential([keras.Input((9, 3)), layer])
    inputs = sequences(9)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].stable_transition
    assert np.abs(array(loaded(inputs)) - array(model(inputs))).max() < 1e-6
    plain = LipschitzRNN(6)
    plain.build((None, None, 3))
    names = [weight.path.split("/")[-1] for weight in layer.weights]
    assert names == [weight.path.split("/")[-1] for weight in plain.weights]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solver": "rk4"}, "the solver 'euler' or 'rk2'.* solver=rk4"),
        ({"alpha": 0.0}, "a positive `alpha`.* alpha=0.0"),
        ({"alpha": -1.0}, "a positive `alpha`.* alpha=-1.0"),
        ({"gamma": (0.0, 1.0)}, "a positive `gamma`.* gamma="),
        ({"gated": True}, "does not cover gates.* gated=True"),
        ({"activation": "gelu"}, "between 0 and 1.* activation=gelu"),
        ({"activation": "oplu"}, "between 0 and 1.* activation=oplu"),
    ],
)
def test_what_cannot_be_kept_stable_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LipschitzRNN(4, stable_transition=True, **arguments)


# An unstable unit.


def unstable(**arguments):
    layer = LipschitzRNN(4, name="wild", step_size=1.0, **arguments)
    layer.build((None, None, 3))
    layer.linear_kernel.assign(np.eye(4))
    return layer


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, {}),
        ({}, {"mask": np.ones((2, 400), bool)}),
        ({"return_sequences": True}, {}),
        ({"return_sequences": True, "return_state": True}, {}),
    ],
    ids=["last", "masked", "sequences", "states"],
)
def test_a_unit_whose_states_overflow_says_so(arguments, options):
    layer, inputs = unstable(**arguments), sequences(400)
    message = "'wild' has states beyond 1e30 or NaN.* `stable_transition=True`"
    with says(message):
        layer(inputs, **options)


def test_a_row_of_nan_says_nothing_and_stays_alone():
    layer = randomise(built())
    plain = LipschitzRNN(6)
    plain.build((None, None, 3))
    inputs = sequences(9)
    inputs[1, 4] = np.nan
    for unit in (layer, plain):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            outputs = array(unit(inputs))
        assert np.isfinite(outputs[0]).all() and np.isnan(outputs[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_a_million_steps_stay_bounded(solver, scale):
    """At the start, after training, and with weights larger than that."""
    layer = built(scale or 1.0, solver=solver)
    if scale is None:
        layer = LipschitzRNN(16, stable_transition=True, solver=solver)
    inputs = sequences(1_000_000, batch=1)
    output = array(layer(inputs))
    # tanh adds at most step_size a step in each unit, and rho forgets them.
    rho = 1 / (1 + 0.001 * 0.03)
    factor = rho if solver == "euler" else (1 + rho) / 2
    bound = 0.03 * np.sqrt(layer.units) / (1 - factor)
    assert np.linalg.norm(output) < bound
