"""MinGRU and MinLSTM: how they start, and gates that are open or shut."""

import keras
import numpy as np
import pytest
from support.layer_gradients import gradients_of
from support.units import UNITS
from support.units import array
from support.units import outputs_of
from support.units import randomise
from support.units import sequences
from support.units import weights_of

BOTH = pytest.mark.parametrize("name", ["min_gru", "min_lstm"])


def moved(name, bias, forget=0.0):
    """A layer whose gate for the candidate has a bias: 200 opens it."""
    layer = UNITS[name]()
    layer.build((None, None, 3))
    if name == "min_gru":
        layer.gate_bias.assign(np.full(4, bias))
    else:
        layer.input_bias.assign(np.full(4, bias))
        layer.forget_bias.assign(np.full(4, forget))
    return layer


@BOTH
def test_kernels_start_apart_with_the_variance_of_their_own_size(name):
    initializer = keras.initializers.GlorotUniform(seed=1)
    layer = UNITS[name](300, kernel_initializer=initializer)
    layer.build((None, None, 100))
    weights = weights_of(layer)
    kernels = [weights[kernel] for kernel in UNITS[name].kernels]
    for index, kernel in enumerate(kernels):
        assert abs(kernel.var() * (100 + 300) / 2 - 1) < 0.05
        for other in kernels[:index]:
            assert abs(np.corrcoef(kernel.ravel(), other.ravel())[0, 1]) < 0.05
    for bias in weights.keys() - UNITS[name].kernels:
        assert (weights[bias] == 0).all()


@BOTH
def test_a_state_stays_within_its_candidates(name):
    layer = UNITS[name]()
    inputs = 10 * sequences(300)
    layer.build(inputs.shape)
    randomise(layer)
    candidates = inputs @ weights_of(layer)["kernel"]
    low = np.minimum.accumulate(np.minimum(candidates, 0), axis=1)
    high = np.maximum.accumulate(np.maximum(candidates, 0), axis=1)
    outputs = outputs_of(layer, inputs)
    assert (low - 1e-4 < outputs).all() and (outputs < high + 1e-4).all()
    assert np.ptp(outputs) > 1


@BOTH
def test_a_shut_gate_holds_the_state_and_an_open_one_takes_the_candidate(name):
    inputs = sequences(500)
    state = np.linspace(-1, 1, 8).reshape(2, 4).astype("float32")
    shut = moved(name, -200.0)
    held = array(shut(inputs, initial_state=[state]))
    assert (held == state[:, None]).all()
    taken = moved(name, 200.0, forget=-200.0)
    candidates = inputs @ weights_of(taken)["kernel"]
    assert np.allclose(outputs_of(taken, inputs), candidates, atol=1e-6)
    for layer in (shut, taken):
        for gradient in gradients_of(layer, inputs).values():
            assert np.isfinite(gradient).all()


@BOTH
def test_a_small_share_is_not_lost_beside_1(name):
    layer = moved(name, -20.0)
    layer.bias.assign(np.ones(4))
    inputs = np.zeros((1, 1000, 3), "float32")
    # The forget gate of a MinLSTM is at 1/2, its input gate 1 / (1 + e^20).
    share = 1 / (1 + np.exp(20.0))
    share = share / (share + 0.5) if name == "min_lstm" else share
    expected = -np.expm1(1000 * np.log1p(-share))
    assert abs(outputs_of(layer, inputs)[0, -1, 0] / expected - 1) < 1e-4


def test_a_min_lstm_shares_what_two_shut_gates_leave():
    # e^-150 is 0 in float32, and 0 / 0 is nothing.
    layer = moved("min_lstm", -150.0, forget=-151.0)
    layer.bias.assign(np.ones(4))
    weights = {name: 0 * value for name, value in weights_of(layer).items()}
    for kernel in UNITS["min_lstm"].kernels:
        getattr(layer, kernel).assign(weights[kernel])
    inputs = sequences(1)
    outputs = outputs_of(layer, inputs)
    assert np.allclose(outputs, 1 / (1 + np.exp(-1.0)), atol=1e-6)
    gradients = gradients_of(layer, inputs)
    slope = 2 / (2 + np.exp(1.0) + np.exp(-1.0))
    assert np.allclose(gradients["input_bias"], slope, atol=1e-5)
    assert np.allclose(gradients["forget_bias"], -slope, atol=1e-5)


@BOTH
def test_positive_candidates_keep_states_above_zero(name):
    layer = UNITS[name](candidate="positive")
    inputs = 3 * sequences(100)
    layer.build(inputs.shape)
    randomise(layer)
    assert outputs_of(layer, inputs).min() > 0
    layer.candidate = "linear"
    assert outputs_of(layer, inputs).min() < 0


@BOTH
def test_states_of_unknown_size_are_named(name):
    with pytest.raises(ValueError, match="Received: units=None, built=False"):
        UNITS[name](None).get_initial_state(2)
