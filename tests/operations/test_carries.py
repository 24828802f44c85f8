"""Scans whose decays are near one, over a million steps, against float64.

A decay of 1 - 1e-6 remembers a million steps, and with them every rounding.
"""

from functools import partial

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import require

from keras_linrec.kernels import backends
from keras_linrec.kernels import registry

pytestmark = pytest.mark.rest

TIME = 2**20
GAPS = (1e-6, 1e-5)


def compiled(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


@pytest.fixture(scope="module")
def system():
    """Decays (channels,), inputs, outputs and gradient of the decays.

    The first inputs are ones, whose roundings do not cancel, then noise; the
    cotangents of the outputs are ones.
    """
    decay = np.repeat(1 - np.array(GAPS), 2).astype("float32")
    noise = np.random.default_rng(0).standard_normal(TIME)
    inputs = np.stack([np.ones(TIME), noise] * 2, axis=1).astype("float32")
    outputs = scanned(decay, inputs)
    # The derivative of the state by the decay is a scan of earlier states.
    before = np.concatenate([np.zeros((1, 4)), outputs[:-1]])
    slope = scanned(decay, before).sum(axis=0)
    return decay, inputs[None], outputs[None], slope


def scanned(decay, inputs):
    """The states in float64, by sums over 1, 2, 4, ... steps."""
    power, states = decay.astype("float64"), inputs.astype("float64")
    for doubling in range(TIME.bit_length() - 1):
        reach = 2**doubling
        states[reach:] += power * states[:-reach]
        power = power * power
    return states


def check(scan, system):
    decay, inputs, outputs, slope = system

    def run(given):
        return [scan((given[0],), (given[1],), (given[2],))[0][0]]

    run = compiled(run)
    given = decay, inputs, np.zeros((1, 4), "float32")
    (got,) = to_numpy(run(tensors(given)))
    (d_decay, *_) = backend_gradients(run, given, [np.ones_like(inputs)])
    for channel in range(4):
        column = (..., channel)
        assert relative_error(got[column], outputs[column]) < 1e-5
        assert relative_error(d_decay[channel], slope[channel]) < 1e-5


def test_the_portable_parallel_scan_forgets_no_digits(system):
    check(registry.load("associative").scan, system)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Pallas is JAX's")
def test_the_pallas_kernels_forget_no_digits(system, monkeypatch):
    from keras_linrec.kernels.jax import pallas

    # A TPU's kernels pass the state from block to block.
    monkeypatch.setattr(pallas, "_platform", lambda: "tpu")
    check(partial(pallas.scan, interpret=True), system)


def test_native_kernels_forget_no_digits(system):
    if backends.current().native_platform() != "cpu":
        pytest.skip("the kernel of this device has a test of its own")
    require(registry._check("native"))
    check(registry.load("native").scan, system)
