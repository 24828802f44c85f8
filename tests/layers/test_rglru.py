"""RGLRU: how it starts, its first step, and decays of 1 and of 0."""

import numpy as np
import pytest
from definitions.rglru import rglru
from support.layer_gradients import errors_of_gradients
from support.layer_gradients import gradients_of
from support.units import array
from support.units import outputs_of
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import RGLRU


def built(features=3, units=4, **arguments):
    layer = RGLRU(units, **arguments)
    layer.build((None, None, features))
    return layer


@pytest.mark.parametrize("ends", [(0.9, 0.999), (0.4, 0.8)])
def test_decays_at_an_open_gate_start_uniform_on_a_ring(ends):
    arguments = (
        {} if ends == (0.9, 0.999) else dict(zip(("r_min", "r_max"), ends))
    )
    layer = built(units=4000, num_heads=1000, **arguments)
    softplus = np.log1p(np.exp(weights_of(layer)["decay_parameter"]))
    decays = np.exp(-8 * softplus)
    assert ends[0] - 1e-6 <= decays.min() < decays.max() <= ends[1] + 1e-6
    # As many in each fifth of the squares.
    counts, _ = np.histogram(decays**2, 5, np.square(ends))
    assert np.abs(counts / 800 - 1).max() < 0.15


def test_every_block_starts_with_the_variance_of_its_own_size():
    weights = weights_of(built(units=240, num_heads=3))
    for name in ("decay_kernel", "gate_kernel"):
        assert weights[name].shape == (3, 80, 80)
        assert abs(weights[name].var() * 80 - 1) < 0.1
    one, other = (weights[n].ravel() for n in ("decay_kernel", "gate_kernel"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_as_many_features_as_units_are_not_projected():
    names = [weight.name for weight in built(features=4).weights]
    assert "projection_kernel" not in names
    layer = RGLRU()
    assert tuple(layer(sequences(5)).shape) == (2, 5, 3)


def test_white_noise_gives_no_state_a_larger_variance_than_its_input():
    layer = built(features=6, units=6, r_max=0.95)
    # Gates that the inputs do not move.
    for kernel in (layer.decay_kernel, layer.gate_kernel):
        kernel.assign(np.zeros((1, 6, 6)))
    outputs = outputs_of(layer, sequences(300, batch=4000, features=6))
    variance = np.square(outputs[:, -1]).mean(axis=0)
    assert np.abs(variance / 0.25 - 1).max() < 0.1


def test_a_first_step_is_a_step_after_a_zero_state_and_after_a_reset():
    """Not one whose input enters unscaled, as in the authors' code."""
    layer = randomise(built())
    inputs = sequences(3)
    zeros = np.zeros((2, 4), "float32")
    resets = np.zeros((2, 3), bool)
    resets[:, 2] = True
    first, after_zero, after_reset = (
        array(layer(inputs[:, 2:].copy()))[:, 0],
        array(layer(inputs[:, 2:].copy(), initial_state=[zeros]))[:, 0],
        array(layer(inputs, reset_mask=resets))[:, 2],
    )
    expected = rglru(weights_of(layer), inputs[:, 2:].astype("float64"))[1]
    for output in (first, after_zero, after_reset):
        assert np.allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize("bias", [-10.0, -30.0, -60.0])
def test_slopes_near_a_decay_of_1_are_those_of_the_definition(bias):
    layer = randomise(built(num_heads=2))
    layer.decay_bias.assign(np.full(4, bias))
    inputs = sequences(3)
    errors = errors_of_gradients(layer, rglru, inputs, floor=1e-9)
    for name, error in errors.items():
        assert error < 1e-3, name


def test_a_decay_of_1_holds_the_state_and_has_slopes():
    layer = built()
    layer.decay_bias.assign(np.full(4, -200.0))
    inputs = sequences(500)
    state = np.linspace(-1, 1, 8).reshape(2, 4).astype("float32")
    held = array(layer(inputs, initial_state=[state]))
    assert (held == state[:, None]).all()
    slopes = gradients_of(layer, sequences(2)).values()
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_a_decay_of_0_forgets_all_and_has_slopes():
    layer = built(features=4)
    layer.decay_parameter.assign(np.full(4, 300.0))
    layer.decay_bias.assign(np.full(4, 200.0))
    inputs = sequences(5, features=4)
    weights = weights_of(layer)
    gate = 1 / (1 + np.exp(-inputs @ weights["gate_kernel"][0]))
    assert np.allclose(outputs_of(layer, inputs), gate * inputs, atol=1e-5)
    slopes = gradients_of(layer, inputs).values()
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_blocks_that_do_not_fit_the_features_are_named_at_building():
    with pytest.raises(ValueError, match="num_heads=2, units=3"):
        RGLRU(num_heads=2).build((None, None, 3))
