"""DeltaNet and Mamba2: how they start, and what their matrices hold."""

import keras
import numpy as np
import pytest
from support.units import array
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import DeltaNet
from keras_linrec.layers import Mamba2

BOTH = pytest.mark.parametrize("layer", [DeltaNet, Mamba2])


def built(layer, features=4, **arguments):
    keras.utils.set_random_seed(0)
    layer = layer(**arguments)
    layer.build((None, None, features))
    return layer


@BOTH
def test_decays_start_as_in_the_authors_code(layer):
    sizes = {"key_dim": 1, "value_dim": 1} if layer is DeltaNet else {}
    features = 800 if layer is Mamba2 else 4
    weights = weights_of(built(layer, features, num_heads=800, **sizes))
    rates = np.exp(weights["log_transition"])
    assert rates.min() >= (1 if layer is Mamba2 else 0)
    # Uniform up to 16.
    assert abs(rates.mean() - (8.5 if layer is Mamba2 else 8.0)) < 0.6
    lengths = np.log1p(np.exp(weights["timescale_bias"]))
    assert 1e-3 * (1 - 1e-5) < lengths.min() < lengths.max() < 0.1 * (1 + 1e-5)
    # As many in each of its two decades.
    assert abs((lengths < 0.01).mean() - 0.5) < 0.06


@BOTH
def test_kernels_start_as_pytorchs_layers(layer):
    for name, weight in weights_of(built(layer, features=400)).items():
        if name.endswith("_kernel"):
            edge = weight.shape[0] ** -0.5
            assert np.abs(weight).max() <= edge * (1 + 1e-6), name
            assert abs(weight.std() * np.sqrt(3) / edge - 1) < 0.1, name
        if name in ("norm_scale", "feedthrough"):
            assert (weight == 1).all()


def test_the_convolution_of_mamba2_starts_with_the_bias_of_a_conv1d():
    bias = weights_of(built(Mamba2, features=400))["convolution_bias"]
    assert np.abs(bias).max() <= 0.5
    assert abs(bias.std() * np.sqrt(3) / 0.5 - 1) < 0.1


def test_a_write_strength_of_2_reflects_the_matrix():
    """It keeps its norm, and another such step brings it back."""
    layer = built(
        DeltaNet,
        num_heads=1,
        key_dim=3,
        value_dim=4,
        gated=False,
        negative_eigenvalues=True,
        return_state=True,
    )
    layer.write_kernel.assign(np.full((4, 1), 100.0))
    layer.value_kernel.assign(np.zeros((4, 4)))
    # So long that what is beside the square of its norm does not count.
    layer.key_kernel.assign(100 * array(layer.key_kernel))
    # The same key at every step, once the window is filled.
    inputs = np.ones((1, 5, 4), "float32")
    window = np.asarray(array(layer(inputs[:, :3])[1]), "float32")
    before = sequences(1, batch=12, features=1).reshape(1, 1, 3, 4)
    _, _, once = layer(inputs[:, :1], initial_state=[window, before])
    _, _, twice = layer(inputs[:, :2], initial_state=[window, before])
    once, twice = array(once), array(twice)
    assert np.abs(once - before).max() > 0.1
    assert np.allclose(np.sum(once**2), np.sum(before**2), rtol=1e-5)
    assert np.allclose(twice, before, atol=1e-5)


def test_a_write_strength_of_1_replaces_what_a_key_holds():
    layer = built(
        DeltaNet,
        num_heads=1,
        key_dim=3,
        value_dim=4,
        gated=False,
        return_state=True,
    )
    layer.write_kernel.assign(np.full((4, 1), 100.0))
    inputs = np.ones((1, 8, 4), "float32")
    *_, after = layer(inputs)
    *_, later = layer(np.ones((1, 20, 4), "float32"))
    # Written again and again, the same value is not added up.
    assert np.allclose(array(after), array(later), atol=1e-6)


def test_heads_of_a_group_share_keys():
    layer = built(DeltaNet, num_heads=6, key_heads=2, key_dim=5)
    shapes = {n: w.shape for n, w in weights_of(layer).items()}
    assert shapes["query_kernel"] == shapes["key_kernel"] == (4, 10)
    assert shapes["value_kernel"] == (4, 60)


def test_heads_that_do_not_divide_the_channels_are_named_at_building():
    with pytest.raises(ValueError, match="num_heads=4, expand=2, 3 features"):
        Mamba2(num_heads=4).build((None, None, 3))
    with pytest.raises(ValueError, match="num_groups=2, num_heads=1"):
        Mamba2(num_groups=2).build((None, None, 3))


@pytest.mark.parametrize(
    ("features", "heads"), [(1, 1), (7, 1), (40, 1), (64, 2), (80, 2), (256, 8)]
)
def test_heads_of_mamba2_have_64_channels_or_the_next_divisor(features, heads):
    layer = built(Mamba2, features=features, state_size=2)
    assert layer.get_initial_state(1)[1].shape[1] == heads
