"""The scan of files, whose number of steps is a symbol, at numbers of steps.

`formats` beside this file runs it in the files' own runtimes.
"""

import itertools

import numpy as np
import pytest
import torch
from definitions import scan as definition

from keras_linrec.kernels.torch import scan

LENGTHS = [1, 2, 63, 64, 65, 200]


def system(time, per_step, decay=(0.5, 0.999)):
    generator = np.random.default_rng(time)
    shape = (2, time, 3) if per_step else (3,)
    angles = generator.uniform(0, 2 * np.pi, shape)
    parts = generator.standard_normal((2, 2, time, 3))
    start = generator.standard_normal((2, 2, 3))
    return (
        generator.uniform(*decay, shape) * np.exp(1j * angles),
        parts[0] + 1j * parts[1],
        start[0] + 1j * start[1],
    )


def parts_of(numbers):
    """Complex numbers as two tensors in float32."""
    return tuple(
        torch.tensor(part.astype("float32"))
        for part in (numbers.real, numbers.imag)
    )


def run(decay, inputs, state, reverse=False, resets=None):
    resets = None if resets is None else torch.tensor(resets).float()
    parts = map(parts_of, (decay, inputs, state))
    real, imag = scan._any_length(*parts, reverse, resets)
    return real.numpy() + 1j * imag.numpy()


def as_rounded(numbers):
    real, imag = parts_of(numbers)
    return real.double().numpy() + 1j * imag.double().numpy()


@pytest.mark.parametrize("per_step", [False, True])
def test_outputs_equal_the_definition(per_step):
    for time, reverse in itertools.product(LENGTHS, (False, True)):
        arguments = system(time, per_step)
        got = run(*arguments, reverse)
        rounded = map(as_rounded, arguments)
        expected, _ = definition.linear_scan(*rounded, reverse=reverse)
        assert np.abs(got - expected).max() < 2e-7 * np.abs(expected).max()


@pytest.mark.parametrize("per_step", [False, True])
def test_a_reset_begins_a_sequence_and_stops_nan(per_step):
    decay, inputs, state = system(200, per_step)
    inputs[0, 30] = np.nan
    resets = np.zeros((2, 200), bool)
    resets[:, [50, 64, 150]] = True

    got = run(decay, inputs, state, resets=resets)

    expected, _ = definition.linear_scan(decay, inputs, state, resets=resets)
    assert np.isnan(got[0, 30:50]).all()
    assert not np.isnan(got[0, 50:]).any()
    error = np.abs(np.nan_to_num(got - expected)).max()
    assert error < 1e-6 * np.nanmax(np.abs(expected))


def test_decays_close_to_one_keep_their_digits():
    arguments = system(2**14, False, decay=(1 - 1e-5, 1 - 1e-6))
    expected, _ = definition.linear_scan(*map(as_rounded, arguments))
    got = run(*arguments)
    assert np.abs(got - expected).max() < 5e-7 * np.abs(expected).max()


def test_products_that_overflow_leave_zeros_alone():
    decay, inputs, state = system(2**10, False, decay=(4, 8))
    assert not run(decay, 0 * inputs, 0 * state).any()


def test_a_decay_that_is_not_finite_gives_nan():
    decay, inputs, state = system(70, True)
    decay[:, 66] = np.inf
    got = run(decay, 0 * inputs, 0 * state)
    assert not got[:, :66].any()
    assert np.isnan(got[:, 66:]).all()
