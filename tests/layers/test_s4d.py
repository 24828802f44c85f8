"""S4D: how it starts, and its two paths."""

import numpy as np
import pytest
from support.layer_gradients import gradients_of
from support.units import array
from support.units import close
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import S4D


def built(features=3, **arguments):
    layer = S4D(4, **arguments)
    layer.build((None, None, features))
    return layer


# Of 8 states: the first four of the paper's formulas, and, for LegS, what the
# formulas of the authors' code give.
STARTS = {
    "lin": [0.0, 3.14159265, 6.28318531, 9.42477796],
    "inv": [17.82535363, 4.24413182, 1.52788745, 0.36378273],
    "legs": [0.42748871, 1.95779415, 5.35420852, 19.85741037],
}


@pytest.mark.parametrize("start", STARTS)
def test_eigenvalues_start_as_the_paper_has_them(start):
    weights = weights_of(built(state_size=8, initial_eigenvalues=start))
    assert np.allclose(np.exp(weights["transition_log_real"]), 0.5)
    expected = np.tile(STARTS[start], (3, 1))
    assert np.allclose(weights["transition_imag"], expected, rtol=1e-6)


def test_the_output_matrix_starts_as_complex_normal_numbers_of_variance_one():
    weights = weights_of(built(features=40, state_size=200))
    real, imag = weights["output_real"], weights["output_imag"]
    assert abs(real.var() - 0.5) < 0.05 and abs(imag.var() - 0.5) < 0.05
    assert abs(np.mean(real * imag)) < 0.05


def test_the_convolution_gives_what_the_recurrence_gives():
    layer = randomise(built(state_size=8, channels=2, dt_max=1.0))
    inputs = sequences(300)
    expected, _ = layer.call_with_states(inputs, layer.get_initial_state(2))
    close(layer(inputs), expected, 1e-4)


def test_gradients_are_finite_at_rest_and_where_no_time_passes():
    layer = built(state_size=4)
    # The first state of "lin" has no frequency; far less damping, too.
    layer.transition_log_real.assign(np.full((3, 2), -80.0))
    for options in ({}, {"time_deltas": np.zeros((2, 5), "float32")}):
        gradients = gradients_of(layer, sequences(5), **options)
        for name, slopes in gradients.items():
            assert np.isfinite(slopes).all(), name


def test_no_step_is_too_long():
    layer = randomise(built(state_size=8, dt_min=50.0, dt_max=1e4))
    outputs = array(layer(sequences(200)))
    assert np.isfinite(outputs).all()
