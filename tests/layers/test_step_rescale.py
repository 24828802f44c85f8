"""`step_rescale`: a system that reads a sequence sampled at another rate."""

import numpy as np
import pytest
from support.units import UNITS
from support.units import array
from support.units import close
from support.units import randomise
from support.units import sequences

SHORT = {"dt_min": 0.001, "dt_max": 0.02}
# A ring of slow oscillators, where a layer starts on one.
SLOW = {"theta_max": 0.02, "r_min": 0.99, "dt_min": 0.005, "dt_max": 0.01}


def built(name, **arguments):
    layer = UNITS[name](**{"state_size": 8, **arguments})
    layer.build((None, None, 3))
    return layer


# Inputs stay for two steps: zero-order hold is exact for them.
@pytest.mark.parametrize(
    ("name", "form", "tolerance"),
    [
        ("s4d", SHORT, 1e-5),
        ("s5", {"discretization": "zoh", **SHORT}, 1e-5),
        ("s5", {"discretization": "bilinear", **SHORT}, 2e-2),
        # Of what the inputs do not pass on at once, a tenth.
        ("linoss", SLOW, 0.1),
        ("linoss", {"discretization": "im", **SLOW}, 0.1),
        ("linoss", {"damping": True, **SLOW}, 0.1),
    ],
)
def test_half_the_sampling_rate_and_twice_the_step_are_the_same_system(
    name, form, tolerance
):
    layer = built(name, **form)
    if name == "linoss":
        layer.feedthrough.assign(0 * layer.feedthrough)
    else:
        randomise(layer)
    slow = sequences(20)
    fast = np.repeat(slow, 2, axis=1)
    expected = array(layer(fast))[:, 1::2]
    layer.step_rescale = 2.0
    halved = array(layer(slow))
    size = np.abs(expected).max() if name == "linoss" else 1.0
    assert np.abs(halved - expected).max() < tolerance * size
    layer.step_rescale = 1.0
    assert np.array_equal(halved, array(layer(slow, step_rescale=2.0)))


@pytest.mark.parametrize("name", ["s4d", "s5"])
def test_lengths_of_steps_add_up(name):
    """Each step in two parts, under the same input."""
    layer = randomise(built(name, return_state=True))
    inputs = sequences(6)
    outputs, *states = layer(
        np.repeat(inputs, 2, axis=1),
        time_deltas=np.tile(np.float32([0.25, 0.75]), (2, 6)),
    )
    for one, other in zip((outputs[:, 1::2], *states), layer(inputs)):
        close(one, other)
