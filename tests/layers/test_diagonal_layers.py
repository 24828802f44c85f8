"""What the units with a diagonal recurrence share, and RotRNN's heads."""

import keras
import numpy as np
import pytest
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem
from keras_linrec.layers import RotRNN
from keras_linrec.layers.base import diagonal_layer

EVERY_UNIT = pytest.mark.parametrize(
    "name", ["linear_dynamical_system", "lru", "rotrnn"]
)


@EVERY_UNIT
def test_an_activation_applies_to_the_outputs_and_not_to_the_states(name):
    layer = UNITS[name](activation="tanh", return_state=True)
    inputs = sequences(9)
    layer.build(inputs.shape)
    randomise(layer)
    plain = UNITS[name](return_state=True)
    plain.build(inputs.shape)
    plain.set_weights(layer.get_weights())
    last = UNITS[name](activation="tanh", return_sequences=False)
    last.build(inputs.shape)
    last.set_weights(layer.get_weights())

    got, *states = map(array, layer(inputs))
    outputs, *expected = map(array, plain(inputs))
    assert np.abs(outputs).max() > 1
    assert np.allclose(got, np.tanh(outputs), atol=1e-5)
    assert np.allclose(array(last(inputs)), np.tanh(outputs[:, -1]), atol=1e-5)
    for one, other in zip(states, expected, strict=True):
        assert np.allclose(one, other, atol=1e-5)
    before = initial_states(layer)
    got, _ = layer.step(inputs[:, 0], before)
    outputs, _ = plain.step(inputs[:, 0], before)
    assert np.allclose(array(got), np.tanh(array(outputs)), atol=1e-5)


@EVERY_UNIT
def test_the_last_output_alone_needs_no_other_outputs(name, monkeypatch):
    kept = []
    scan = diagonal_layer.projected_scan

    def watched(*arguments, keep_all, **options):
        kept.append(keep_all)
        return scan(*arguments, keep_all=keep_all, **options)

    monkeypatch.setattr(diagonal_layer, "projected_scan", watched)
    UNITS[name](return_sequences=False)(sequences(9))
    assert kept == [False]


# Of RotRNN.


@pytest.mark.parametrize(
    ("state_size", "heads"),
    [(128, 32), (100, 25), (32, 16), (2, 1), (3, 1), (7, 1), (1024, 32)],
)
def test_heads_are_as_many_as_fit_up_to_the_papers(state_size, heads):
    layer = RotRNN(8, state_size=state_size)
    assert layer.num_heads == heads
    assert RotRNN.from_config(layer.get_config()).num_heads == heads


def test_every_head_starts_as_if_it_were_alone():
    layer = RotRNN(8, state_size=128)
    layer.build((None, None, 128))
    kernel = weights_of(layer)["input_kernel"]
    # Glorot's, of 128 inputs and the 4 states of a head.
    assert abs(kernel.std() / np.sqrt(2 / (128 + 4)) - 1) < 0.02
    for name in ("orthogonal", "ones"):
        layer = RotRNN(8, state_size=12, kernel_initializer=name)
        layer.build((None, None, 5))
        products = [head @ head.T for head in weights_of(layer)["input_kernel"]]
        expected = keras.initializers.get(name)((5, 2))
        expected = array(expected) @ array(expected).T
        assert np.allclose(
            [np.trace(product) for product in products], np.trace(expected)
        )


def test_heads_start_apart_with_a_seed_and_without():
    seeded = keras.initializers.GlorotNormal(seed=3)
    generator = keras.initializers.GlorotNormal(
        seed=keras.random.SeedGenerator(3)
    )
    for initializer in ("glorot_normal", seeded, generator):
        layer = RotRNN(8, 8, num_heads=4, kernel_initializer=initializer)
        layer.build((None, None, 3))
        heads = weights_of(layer)["input_kernel"]
        assert all(
            np.abs(heads[i] - heads[j]).max() > 0.01
            for i in range(4)
            for j in range(i)
        )
    first, again = (
        RotRNN(8, 8, num_heads=4, kernel_initializer=seeded) for _ in range(2)
    )
    for layer in (first, again):
        layer.build((None, None, 3))
    assert (array(first.input_kernel) == array(again.input_kernel)).all()
    assert (array(first.output_kernel) == array(again.output_kernel)).all()


# Of LinearDynamicalSystem and LDStack.


@pytest.mark.parametrize("layer", [LinearDynamicalSystem, LDStack])
def test_states_are_a_multiple_of_the_features_from_32_on(layer):
    for features, states in ((1, 32), (3, 33), (7, 35), (32, 32), (40, 40)):
        unit = layer(8)
        assert unit.state_shapes_of(features)[0] == (states,)
        unit.build((None, None, features))
        assert unit._num_states == unit.output_kernel.shape[0] == states
        assert unit.get_config()["state_size"] is None
    with pytest.raises(ValueError, match="build or call it before .* Received"):
        layer(8).get_initial_state(2)


def test_the_scale_of_rotrnns_input_kernel_has_no_effect():
    layer = RotRNN(2, state_size=6, num_heads=2)
    inputs = sequences(6)
    expected = array(layer(inputs))
    kernel = array(layer.input_kernel)
    for scale in (1e-25, 1e-10, 1e25):
        layer.input_kernel.assign(kernel * np.float32(scale))
        np.testing.assert_allclose(array(layer(inputs)), expected, atol=1e-6)
    layer.input_kernel.assign(0 * kernel)
    assert np.isfinite(array(layer(inputs))).all()
