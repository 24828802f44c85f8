"""CausalConvolution: its taps and its window."""

import keras
import numpy as np
from support.units import array
from support.units import close
from support.units import outputs_of
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import CausalConvolution


def built(features=3, units=None, **arguments):
    layer = CausalConvolution(units, **arguments)
    layer.build((None, None, features))
    return layer


def test_it_is_a_depthwise_convolution_after_zeros():
    layer = randomise(built(activation="tanh"))
    layer.bias.assign([0.1, -0.2, 0.3])
    keras_layer = keras.layers.DepthwiseConv1D(4, activation="tanh")
    inputs = sequences(9)
    padded = np.pad(inputs, ((0, 0), (3, 0), (0, 0)))
    keras_layer.build(padded.shape)
    kernel, bias = layer.get_weights()
    keras_layer.set_weights([kernel[:, :, None], bias])
    close(layer(inputs), keras_layer(padded), 1e-6)


def test_an_impulse_gives_the_taps_the_latest_first():
    layer = built()
    inputs = np.zeros((1, 6, 3), "float32")
    inputs[0, 1] = 1
    outputs = outputs_of(layer, inputs)[0]
    expected = np.zeros((6, 3))
    expected[1:5] = weights_of(layer)["kernel"][::-1]
    close(outputs, expected, 1e-6)


def test_taps_and_projection_start_with_what_keeps_the_variance():
    weights = weights_of(built(features=100, units=3000, kernel_size=5))
    assert weights["kernel"].shape == (5, 3000)
    assert abs(weights["kernel"].var() * 5 - 1) < 0.05
    assert abs(weights["projection_kernel"].var() * 100 - 1) < 0.05
    assert (weights["bias"] == 0).all()


def test_a_window_reaches_over_masked_steps_and_not_over_a_reset():
    layer = randomise(built(return_state=True))
    inputs = sequences(6, batch=1)
    mask = np.array([[True, False, True, False, True, True]])
    outputs, state = layer(inputs, mask=mask)
    kept = inputs[:, [0, 2, 4, 5]]
    close(outputs[:, 5], layer(kept)[0][:, 3])
    close(state, kept[:, 1:])
    resets = np.array([[False, False, True, False, False, False]])
    inputs[0, 1] = np.nan
    close(layer(inputs, reset_mask=resets)[0][:, 2:], layer(inputs[:, 2:])[0])
    two = resets[:, 1:4].copy()
    _, state = layer(inputs[:, 1:4].copy(), reset_mask=two)
    close(state[:, 0], np.zeros((1, 3)), 0)
    close(state[:, 1:], inputs[:, 2:4], 0)


def test_a_sequence_shorter_than_the_window_keeps_what_was_before():
    layer = built(kernel_size=5, return_state=True)
    before = np.arange(12, dtype="float32").reshape(1, 4, 3)
    inputs = sequences(2, batch=1)
    _, state = layer(inputs, initial_state=[before])
    close(state, np.concatenate([before[:, 2:], inputs], axis=1), 0)


def test_it_is_linear_without_an_activation():
    assert CausalConvolution().is_linear
    assert not CausalConvolution(activation="gelu").is_linear
    layer = built(use_bias=False)
    one, other = sequences(5, seed=1), sequences(5, seed=2)
    close(layer(one + other), array(layer(one)) + array(layer(other)), 1e-5)
