"""`projected_scan(keep_all=False)`, which reduces its inputs in blocks."""

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy

from keras_linrec import ops

STEPS = 16_384


def final_state(decay, inputs, state, reset_mask=None):
    """The final state's parts, where the input kernel is the identity."""
    channels = decay[0].shape[0]
    one = keras.ops.eye(channels)
    nothing = keras.ops.zeros_like(one)
    kernel = (one, nothing)[: len(decay)]
    *arguments, state = (
        parts if len(decay) == 2 else parts[0]
        for parts in (tuple(decay), kernel, kernel, tuple(state))
    )
    decay, *kernels = arguments
    _, final = ops.projected_scan(
        decay, inputs, *kernels, state, keep_all=False, reset_mask=reset_mask
    )
    return final if isinstance(final, (tuple, list)) else [final]


def test_no_digit_is_lost_over_many_steps():
    """Neither the decay's powers nor what they multiply are rounded often."""
    # On the unit circle nothing is forgotten, and no rounding either.
    angle = np.array([0.1, 2.0, 3.0])
    parts = np.stack([np.cos(angle), np.sin(angle)]).astype("float32")
    decay = parts[0].astype("float64") + 1j * parts[1]
    generator = np.random.default_rng(0)
    inputs = generator.uniform(0, 1, (1, STEPS, 3)).astype("float32")
    state = np.array([[[30.0, 0.0, 20.0]], [[0.0, 10.0, 0.0]]])
    cotangents = np.ones((2, 1, 3))
    arrays = [*parts, inputs, *state]

    def run(arguments):
        return final_state(arguments[:2], arguments[2], arguments[3:])

    # z^0, z^1, ..., z^STEPS.
    powers = decay ** np.arange(STEPS + 1)[:, None]
    terms = np.concatenate([state[:1, 0] + 1j * state[1:, 0], inputs[0]])
    final = (powers[::-1] * terms).sum(0)
    got = to_numpy(compiled(run)(tensors(arrays)))
    assert relative_error(got[0] + 1j * got[1], final[None]) < 1e-6

    exponents = np.arange(STEPS, 0, -1)[:, None]
    slope = (exponents * powers[STEPS - 1 :: -1] * terms[:-1]).sum(0)
    upstream = np.conj(powers[::-1]) * (1 + 1j)
    slopes = np.conj(slope) * (1 + 1j), upstream[1:].real, upstream[0]
    got = backend_gradients(run, arrays, cotangents)
    assert relative_error(got[0] + 1j * got[1], slopes[0]) < 1e-6
    assert relative_error(got[2][0], slopes[1]) < 1e-6
    assert relative_error(got[3][0] + 1j * got[4][0], slopes[2]) < 1e-6


@pytest.mark.parametrize("decay", [1.01, 5.0])
def test_what_a_reset_has_ended_does_not_overflow(decay):
    """Though the decay's power over all steps does, in the gradient too."""
    time, period = 9_000, 7
    mask = np.arange(time)[None] % period == 0
    inputs = np.ones((1, time, 1))
    # So many steps since the last reset.
    last = (time - 1) % period + 1

    def run(arguments):
        return final_state(
            arguments[:1],
            arguments[1],
            arguments[2:],
            keras.ops.convert_to_tensor(mask),
        )

    arrays = [np.full(1, decay), inputs, np.ones((1, 1))]
    powers = np.float64(np.float32(decay)) ** np.arange(last)
    (got,) = to_numpy(compiled(run)(tensors(arrays)))
    assert relative_error(got, powers.sum(keepdims=True)[None]) < 1e-6
    slopes = backend_gradients(run, arrays, [np.ones((1, 1))])
    by_decay = (np.arange(1, last) * powers[:-1]).sum(keepdims=True)
    assert relative_error(slopes[0], by_decay) < 1e-6
    by_inputs = np.zeros(time)
    by_inputs[-last:] = powers[::-1]
    assert relative_error(slopes[1][0, :, 0], by_inputs) < 1e-6
    assert slopes[2] == 0


def test_zeros_stay_zero_where_growth_overflows():
    inputs = np.zeros((1, 100, 2), "float32")
    inputs[:, -2:] = 1.0
    decay = np.array([5.0, 1e6], "float32")
    (got,) = to_numpy(
        compiled(lambda given: final_state(given[:1], *given[1:]))(
            tensors([decay, inputs, np.zeros((1, 1, 2))])
        )
    )
    assert relative_error(got / [6.0, 1e6 + 1], np.ones((1, 2))) < 1e-6
