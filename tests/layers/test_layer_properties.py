"""Layers on drawn arguments and calls.

`drawn_cases.py` explains how many cases there are, and how to choose whether
they are compiled; `drawn_layers.py` draws the layers. A compiled program serves
one layer and one combination of shapes, so that compiled cases draw from few
layers, and many values for each.
"""

from functools import lru_cache

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.defined_calls import Call
from support.defined_calls import defined_call
from support.drawn_cases import CASES
from support.drawn_cases import FEW_SHAPES
from support.drawn_cases import NOT_FINITE
from support.drawn_cases import SEEDS
from support.drawn_cases import cases
from support.drawn_cases import run_as_chosen
from support.drawn_cases import tensors
from support.drawn_layers import FEATURES
from support.drawn_layers import draw_layer
from support.units import UNITS
from support.units import array
from support.units import weights_of

# In the selection, one has a convolution and one a loop; the others are scans.
NAMES = tuple(UNITS) if CASES or not FEW_SHAPES else ("lssl", "orthogonal_rnn")
LAYERS = st.integers(0, (len(NAMES) * 8 if CASES else 2) - 1)
if not FEW_SHAPES:
    LAYERS = SEEDS
BATCH, TIME = 3, 9


@lru_cache(maxsize=128)
def built(number):
    """A drawn layer, and its program for a call with mask and resets."""
    name = NAMES[number % len(NAMES)]
    drawn = draw_layer(np.random.default_rng(number), [name])
    # A layer that reads both ways takes no mask beside resets if it returns
    # its states.
    returned = not drawn.form.get("bidirectional")
    layer = drawn.built(return_state=returned)

    def call(given):
        inputs, mask, resets = given
        return layer(inputs, mask=mask, reset_mask=resets)

    return drawn, weights_of(layer), run_as_chosen(call)


def draw_marks(generator):
    """A mask with holes and resets, which may lie on masked steps."""
    mask = generator.random((BATCH, TIME)) < generator.choice([0.3, 0.7, 1.0])
    resets = generator.random((BATCH, TIME)) < generator.choice([0.0, 0.2])
    return mask, resets


def called(call, inputs, mask, resets):
    results = call([tensors(inputs, False), mask, resets])
    return [array(part) for part in keras.tree.flatten(results)]


@cases(0.13)
@given(
    number=LAYERS,
    # `modrelu` jumps at zero, and squares vanish below 1e-19.
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    seed=SEEDS,
)
def test_a_drawn_layer_equals_its_definition(number, scale, seed):
    drawn, weights, call = built(number)
    generator = np.random.default_rng(seed)
    shape = (BATCH, TIME, FEATURES)
    inputs = (scale * generator.standard_normal(shape)).astype("float32")
    mask, resets = draw_marks(generator)
    expected = defined_call(
        drawn,
        weights,
        Call(inputs.astype("float64"), mask=mask, resets=resets),
    )
    got = called(call, inputs, mask, resets)
    for one, other in zip(got, expected):
        assert one.shape == other.shape
        # What is added up may be larger than its sum, and TensorFlow computes
        # an ELU from exp(x) - 1.
        size = max(np.abs(part).max(initial=0) for part in (*expected, inputs))
        assert np.abs(one - other).max() <= 2e-4 * size + 1e-6


@cases(0.13)
@given(
    number=LAYERS,
    scale=st.sampled_from([0.0, 1e-40, 1e-20, 1.0, 1e6]),
    value=NOT_FINITE,
    row=st.integers(0, BATCH - 1),
    step=st.integers(0, TIME - 1),
    seed=SEEDS,
)
def test_one_bad_row_of_a_layer_does_not_reach_the_others(
    number, scale, value, row, step, seed
):
    _, _, call = built(number)
    generator = np.random.default_rng(seed)
    shape = (BATCH, TIME, FEATURES)
    inputs = scale * generator.standard_normal(shape).astype("float32")
    mask, resets = draw_marks(generator)
    clean = called(call, inputs, mask, resets)
    assert all(np.isfinite(part).all() for part in clean)
    inputs[row, step] = value
    got = called(call, inputs, mask, resets)
    others = np.arange(BATCH) != row
    for one, other in zip(got, clean, strict=True):
        np.testing.assert_array_equal(one[others], other[others])
    if not mask[row, step]:
        # A masked value has no effect at all.
        for one, other in zip(got, clean, strict=True):
            np.testing.assert_array_equal(one[row], other[row])
    elif np.isnan(value):
        # An infinite one may saturate an activation.
        assert not np.isfinite(got[0][row]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_takes_a_batch_of_no_rows(name):
    layer = UNITS[name](return_state=True)
    layer.build((None, 5, 3))
    marks = np.zeros((0, 5), bool)
    for options in ({}, {"mask": marks}, {"reset_mask": marks}):
        call = run_as_chosen(
            lambda given, options=options: layer(given, **options)
        )
        outputs, *states = call(np.zeros((0, 5, 3), "float32"))
        assert tuple(outputs.shape) == (0, 5, 4)
        assert all(state.shape[0] == 0 for state in states)
