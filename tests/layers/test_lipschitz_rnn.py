"""What only LipschitzRNN and AntisymmetricRNN promise."""

import warnings

import keras
import numpy as np
import pytest
from definitions.lipschitz_rnn import lipschitz_rnn
from support.autodiff import relative_error
from support.layer_gradients import errors_of_gradients
from support.units import array
from support.units import randomise
from support.units import sequences
from support.units import time_deltas_of
from support.units import weights_of

from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import LipschitzRNN


def built(layer, inputs):
    layer.build(inputs.shape)
    return randomise(layer)


@pytest.mark.parametrize("solver", ["euler", "rk4"])
def test_steps_of_different_lengths_equal_the_definition(solver):
    form = {"solver": solver, "step_size": 0.3}
    layer = LipschitzRNN(
        5, return_sequences=True, trainable_step_size=True, **form
    )
    inputs, lengths = sequences(7), time_deltas_of(7)
    built(layer, inputs)

    def define(weights, inputs, time_deltas):
        return lipschitz_rnn(weights, inputs, None, time_deltas, **form)

    got = array(layer(inputs, time_deltas=lengths))
    wide = inputs.astype("float64"), lengths.astype("float64")
    assert relative_error(got, define(weights_of(layer), *wide)[0]) < 1e-5
    errors = errors_of_gradients(layer, define, inputs, time_deltas=lengths)
    for name, error in errors.items():
        assert error < 1e-4, name


def test_an_antisymmetric_unit_is_a_lipschitz_one_without_the_rest():
    form = {"step_size": 0.2, "solver": "rk2", "gated": True}
    inputs = sequences(8)
    layer = built(AntisymmetricRNN(5, gamma=0.1, **form), inputs)
    w = array(layer.recurrent_matrix())
    assert np.allclose(w + w.T, -0.2 * np.eye(5), atol=1e-6)
    other = LipschitzRNN(5, alpha=0.0, beta=1.0, gamma=0.1, **form)
    other.build(inputs.shape)
    other.set_weights(layer.get_weights())
    assert (array(layer(inputs)) == array(other(inputs))).all()


def test_a_neural_ode_has_a_plain_matrix_and_no_linear_part():
    layer = LipschitzRNN(4, alpha=0.0, beta=0.5, gamma=0.0)
    built(layer, sequences(3))
    assert np.allclose(array(layer.recurrent_matrix()), layer.recurrent_kernel)
    assert layer.linear_matrix() is None
    assert [w.name for w in layer.weights] == [
        "kernel",
        "bias",
        "recurrent_kernel",
    ]


def test_a_step_of_other_features_is_named():
    layer = LipschitzRNN(4)
    layer.build((None, None, 3))
    with pytest.raises(ValueError, match="takes steps of 3 features"):
        layer.step(np.ones((2, 4), "float32"), layer.get_initial_state(2))


def test_an_initializer_may_be_a_function_and_an_activation_no_lambda():
    layer = LipschitzRNN(
        4,
        activation=lambda x: keras.ops.tanh(x),
        kernel_initializer=lambda shape, dtype: keras.ops.ones(shape, dtype),
    )
    layer.build((None, None, 2))
    assert (array(layer.kernel) == 1).all()
    with pytest.raises(ValueError, match="A lambda cannot be saved"):
        layer.get_config()


@pytest.mark.parametrize("features", [1, 4])
@pytest.mark.parametrize("make", [LipschitzRNN, AntisymmetricRNN])
def test_u_begins_as_in_a_linear_layer_of_pytorch_and_b_at_zero(make, features):
    layer = make(200, gated=True)
    layer.build((None, None, features))
    bound = 1 / np.sqrt(features)
    for kernel in (layer.kernel, layer.gate_kernel):
        values = array(kernel)
        assert 0.9 * bound < np.abs(values).max() <= bound
        assert abs(values.std() / bound - 1 / np.sqrt(3)) < 0.1
    for bias in (layer.bias, layer.gate_bias):
        assert (array(bias) == 0).all()
    given = make(4, bias_initializer="ones", kernel_initializer="zeros")
    given.build((None, None, features))
    assert (array(given.bias) == 1).all() and (array(given.kernel) == 0).all()


def test_the_warning_says_by_how_much_a_step_grows():
    inputs = np.zeros((1, 100_000, 1), "float32")
    with pytest.warns(RuntimeWarning, match=r"by up to 1 \+ 0\.00\d"):
        LipschitzRNN(16).build(inputs.shape)


def test_a_step_size_that_must_diverge_warns():
    inputs = np.zeros((2, 200, 1), "float32")
    with pytest.warns(RuntimeWarning, match="diverges.*step_size=2.0"):
        LipschitzRNN(64, step_size=2.0)(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LipschitzRNN(64)(inputs)
        LipschitzRNN(64, step_size=0.2)(inputs)
        LipschitzRNN(64, step_size=2.0, stable_transition=True)(inputs)
