"""The arithmetic of a step, as XLA counts it, beside that of `models.cost`."""

import jax
import numpy as np
import pytest

from keras_linrec.models import cost
from keras_linrec.models.units import UNITS

pytestmark = pytest.mark.rest

BATCH, FEATURES = 64, 32
# Beside the weights: products of states, and reflections, which are two
# products each.
MOST = {
    "lssl": 3,
    "ldstack": 3.8,
    "linear_dynamical_system": 1.7,
    "delta_net": 1.5,
    "mamba2": 1.4,
    "orthogonal_rnn": 1.4,
    "s4d": 1.3,
}


@pytest.mark.parametrize("name", UNITS)
def test_a_step_multiplies_what_it_costs(name):
    layer = UNITS[name](units=FEATURES, return_sequences=True)
    layer.build((None, None, FEATURES))
    constants = layer.step_constants()
    given = {} if constants is None else {"constants": constants}
    inputs = np.zeros((BATCH, FEATURES), "float32")
    step = jax.jit(lambda inputs, states: layer.step(inputs, states, **given))
    counted = step.lower(inputs, layer.get_initial_state(BATCH))
    # Multiplications and additions are two operations.
    found = counted.cost_analysis()["flops"] / 2
    expected = cost(layer, BATCH, 1).multiply_adds
    assert 0.95 < found / expected < MOST.get(name, 1.1)
