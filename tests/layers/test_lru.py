"""LRU: how it starts."""

import numpy as np
from support.units import array
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import LRU


def built(features=3, **arguments):
    layer = LRU(4, **arguments)
    layer.build((None, None, features))
    return layer


def test_eigenvalues_start_uniform_on_a_ring():
    layer = built(state_size=4000, r_min=0.4, r_max=0.8, theta_max=1.0)
    weights = weights_of(layer)
    modulus = np.exp(-np.exp(weights["nu_log"]))
    angle = np.exp(weights["theta_log"])
    assert 0.4 - 1e-6 <= modulus.min() < modulus.max() <= 0.8 + 1e-6
    assert 0 < angle.min() < angle.max() <= 1 + 1e-6
    # As many in each fifth of the squares, and of the angles.
    for numbers, ends in ((modulus**2, (0.16, 0.64)), (angle, (0, 1))):
        counts, _ = np.histogram(numbers, 5, ends)
        assert np.abs(counts / 800 - 1).max() < 0.15


def test_gamma_starts_as_the_scale_that_each_eigenvalue_asks_for():
    weights = weights_of(built(r_max=0.9999))
    modulus = np.exp(-np.exp(weights["nu_log"]))
    expected = 0.5 * np.log(1 - modulus**2)
    assert np.allclose(weights["gamma_log"], expected, atol=1e-4)


def test_kernels_start_as_complex_numbers_that_keep_the_variance():
    layer = built(features=50, state_size=400)
    weights = weights_of(layer)
    for name, fan_in in (("input", 50), ("output", 400)):
        real, imag = weights[f"{name}_real"], weights[f"{name}_imag"]
        for part in (real, imag):
            assert abs(part.var() * 2 * fan_in - 1) < 0.1
        assert abs(np.mean(real * imag)) * 2 * fan_in < 0.1


def test_white_noise_gives_every_state_the_variance_of_its_input():
    layer = built(features=5, state_size=8, r_max=0.95, return_state=True)
    _, real, imag = layer(sequences(300, batch=2000, features=5))
    weights = weights_of(layer)
    entering = weights["input_real"] ** 2 + weights["input_imag"] ** 2
    variance = np.mean(array(real) ** 2 + array(imag) ** 2, axis=0)
    assert np.abs(variance / entering.sum(axis=0) - 1).max() < 0.15
