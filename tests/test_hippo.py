"""The HiPPO matrices, against the paper and against what they are for."""

import numpy as np
import pytest
from definitions import lssl as definition
from numpy.polynomial import legendre

from keras_linrec.ops.hippo import MEASURES
from keras_linrec.ops.hippo import hippo


def system(measure, size):
    parts = hippo(measure, size)
    names = [f"transition_{part}" for part in "pdqt"]
    return definition.transition(dict(zip(names, parts))), parts.b


def test_legs_is_the_matrix_of_section_b2_with_the_stable_sign():
    matrix, vector = system("legs", 5)
    for n in range(5):
        for k in range(5):
            expected = 0.0
            if n > k:
                expected = -np.sqrt((2 * n + 1) * (2 * k + 1))
            elif n == k:
                expected = -(n + 1)
            assert abs(matrix[n, k] - expected) < 1e-12
    assert np.allclose(vector, np.sqrt(2 * np.arange(5) + 1))


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_legt_is_the_matrix_of_section_e2(size):
    matrix, _ = system("legt", size)
    for n in range(size):
        for k in range(size):
            sign = (-1.0) ** (n - k) if n <= k else 1.0
            expected = -sign * np.sqrt((2 * n + 1) * (2 * k + 1))
            assert abs(matrix[n, k] - expected) < 1e-9


def test_lagt_is_the_matrix_of_section_e2():
    matrix, vector = system("lagt", 4)
    expected = -np.tril(np.ones((4, 4))) + 0.5 * np.eye(4)
    assert np.allclose(matrix, expected)
    assert np.allclose(vector, 1)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_is_stable(measure, size):
    if measure == "legs":
        # Triangular; the eigenvalues of a matrix so far from normal cannot be
        # computed, but stand on its diagonal.
        eigenvalues = np.diag(system(measure, size)[0])
    elif measure == "lagt":
        eigenvalues = np.diag(system(measure, size)[0])
    else:
        eigenvalues = np.linalg.eigvals(system(measure, size)[0])
    assert eigenvalues.real.max() < 0


def test_legs_has_the_transfer_function_of_scaled_legendre():
    size, s = 12, 0.7 + 2.0j
    n = np.arange(size)
    expected = np.sqrt(2 * n + 1) / (s + n + 1)
    for k in range(size):
        expected[k + 1 :] *= (s - k) / (s + k + 1)
    matrix, vector = system("legs", size)
    got = np.linalg.solve(s * np.eye(size) - matrix, vector)
    assert np.allclose(got, expected, rtol=1e-10)


def test_lagt_has_the_transfer_function_of_laguerre():
    size, s = 12, 0.7 + 2.0j
    n = np.arange(size)
    matrix, vector = system("lagt", size)
    got = np.linalg.solve(s * np.eye(size) - matrix, vector)
    assert np.allclose(got, (s - 0.5) ** n / (s + 0.5) ** (n + 1), rtol=1e-10)


def test_legt_remembers_a_window_of_length_one():
    size, steps = 24, 4000
    matrix, vector = system("legt", size)
    a_bar, b_bar = definition.discretise(matrix, vector, 1 / steps, 0.5)
    time = np.arange(2 * steps) / steps
    signal = np.sin(5 * time) + 0.5 * np.cos(11 * time)
    state = np.zeros(size)
    for value in signal:
        state = a_bar @ state + b_bar * value
    position = np.linspace(-0.95, 0.95, 50)
    remembered = legendre.legval(
        position, state * np.sqrt(2 * np.arange(size) + 1)
    )
    past = np.interp(1 + (1 + position) / 2, time, signal)
    assert np.abs(remembered - past).max() < 0.01


def test_an_unknown_measure_is_named():
    with pytest.raises(ValueError, match="`measure` .* Received: measure=leg"):
        hippo("leg", 4)
