"""Layers treat the rows of a batch apart, on cases that Hypothesis draws.

`drawn_cases.py` explains how many cases there are.
"""

from functools import cache

import numpy as np
import pytest
from autodiff import BACKEND
from autodiff import compiled
from drawn_cases import NOT_FINITE
from drawn_cases import SEEDS
from drawn_cases import cases
from drawn_cases import tensors
from hypothesis import given
from hypothesis import strategies as st
from units import UNITS
from units import array
from units import randomise

# JAX compiles each layer: one has a convolution, one a loop; all others are
# scans.
LAYERS = ["lssl", "orthogonal_rnn"] if BACKEND == "jax" else sorted(UNITS)


@cache
def built(name):
    layer = UNITS[name]()
    layer.build((None, None, 3))
    randomise(layer)
    return compiled(lambda given: layer(given[0], mask=given[1]))


@cases(0.13)
@given(
    name=st.sampled_from(LAYERS),
    scale=st.sampled_from([0.0, 1e-40, 1e-20, 1.0, 1e6]),
    value=NOT_FINITE,
    row=st.integers(0, 2),
    step=st.integers(0, 8),
    seed=SEEDS,
)
def test_one_bad_row_of_a_layer_does_not_reach_the_others(
    name, scale, value, row, step, seed
):
    generator = np.random.default_rng(seed)
    inputs = scale * generator.standard_normal((3, 9, 3)).astype("float32")
    mask = generator.random((3, 9)) < 0.7
    call = built(name)
    clean = array(call([tensors(inputs, False), mask]))
    assert np.isfinite(clean).all()
    inputs[row, step] = value
    got = array(call([tensors(inputs, False), mask]))
    others = np.arange(3) != row
    np.testing.assert_array_equal(got[others], clean[others])
    # A masked value has no effect at all.
    assert np.isfinite(got[row]).all() == (not mask[row, step])


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_a_batch_of_no_rows(name):
    layer = UNITS[name](return_state=True)
    layer.build((None, 5, 3))
    marks = np.zeros((0, 5), bool)
    for options in ({}, {"mask": marks}, {"reset_mask": marks}):
        call = compiled(lambda given, options=options: layer(given, **options))
        outputs, *states = call(np.zeros((0, 5, 3), "float32"))
        assert tuple(outputs.shape) == (0, 5, 4)
        assert all(state.shape[0] == 0 for state in states)
