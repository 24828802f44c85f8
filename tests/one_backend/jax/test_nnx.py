"""Layers and models as modules of Flax NNX.

Keras decides when it is imported whether they are, so they are in a process of
their own.
"""

from functools import cache

import numpy as np
import pytest
from selection import standing_for_all
from support.units import UNITS
from support.workers import found_by

pytest.importorskip("flax", reason="Flax needs Python 3.11")
pytestmark = pytest.mark.rest

# A unit that gathers its weights, and a model that has a tuple of blocks.
CHOSEN = ("delta_net", "classifier")
OTHERS = tuple(name for name in ("bidirectional", *UNITS) if name not in CHOSEN)


@cache
def found(names):
    return found_by("nnx_worker", *names)


@pytest.mark.parametrize(
    "name", standing_for_all([*CHOSEN, *OTHERS], CHOSEN, part="weekly")
)
def test_gradients_of_a_module_are_those_of_its_stateless_call(name):
    names = CHOSEN if name in CHOSEN else OTHERS
    slopes, expected = found(names)["slopes"][name]
    assert expected[0] > 0
    np.testing.assert_allclose(slopes, expected, rtol=1e-4)


def test_a_stateful_module_keeps_its_states():
    kept, returned = found(CHOSEN)["states"]
    assert np.abs(returned).max() > 0
    np.testing.assert_allclose(kept, returned, atol=1e-6)


def test_the_loop_of_the_page_trains():
    losses = found(CHOSEN)["page"]
    assert losses[-1] < losses[0]
