"""A stream of a million steps, in parts with the states handed on.

    KERAS_BACKEND=jax python -m pytest -m slow -s \
        tests/layers/test_a_million_steps.py

prints each unit's drift and the growth of the process.
"""

import gc
from pathlib import Path

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.autodiff import to_numpy
from support.units import UNITS

STEPS, PART = 1_000_000, 10_000
# Parts after which the process no longer grows.
WARM = 20
# Without it the states of a LipschitzRNN overflow.
FORMS = {"lipschitz_rnn": {"stable_transition": True}}


def memory():
    """The bytes of this process that are in memory."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads Linux' /proc"
)
@pytest.mark.parametrize("name", UNITS)
def test_a_streamed_million_is_the_whole_and_needs_no_memory(name, capsys):
    keras.utils.set_random_seed(0)
    layer = UNITS[name].layer(8, return_sequences=True, **FORMS.get(name, {}))
    inputs = np.random.default_rng(0).standard_normal((1, STEPS, 4), "float32")
    layer.build(inputs.shape)
    (whole,) = to_numpy(compiled(lambda given: [layer(given[0])])([inputs]))
    states = layer.get_initial_state(1)

    def run(arguments):
        outputs, states = layer.call_with_states(arguments[0], arguments[1:])
        # PyTorch would keep what the gradient of all parts needs.
        return [keras.ops.stop_gradient(one) for one in (outputs, *states)]

    run = compiled(run)
    largest, drift, sizes = np.abs(whole).max(), 0.0, []
    for start in range(0, STEPS, PART):
        part = slice(start, start + PART)
        outputs, *states = run([inputs[:, part], *states])
        (outputs,) = to_numpy([outputs])
        assert np.isfinite(outputs).all()
        drift = max(drift, np.abs(outputs - whole[:, part]).max() / largest)
        sizes.append(memory())
    growth = (sizes[-1] - sizes[WARM]) / 2**20
    with capsys.disabled():
        print(f"\n{name}: drift {drift:.1e}, growth {growth:.1f} MiB")
    assert drift < 1e-4
    assert growth < 4
