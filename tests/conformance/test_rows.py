"""A row is its own: what is wrong in one does not reach the others."""

import numpy as np
import pytest
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("a NaN stays in its row")


@pytest.mark.parametrize("number", [np.nan, np.inf])
@EVERY_LAYER_AND_CELL
def test_one_bad_row_does_not_reach_the_others(name, number):
    layer = built(name)
    inputs = sequences(9, batch=3)
    expected = array(layer(inputs))
    inputs[1, 2] = number
    got = array(layer(inputs))
    assert_close(got[[0, 2]], expected[[0, 2]], 1e-6)
    if np.isnan(number):
        assert np.isnan(got[1]).any()
