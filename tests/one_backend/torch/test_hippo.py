"""The HiPPO matrices, against the paper and against their purpose."""

import numpy as np
import pytest
from definitions import lssl as definition
from numpy.polynomial import legendre
from scipy.special import eval_genlaguerre
from scipy.special import gammaln
from scipy.special import roots_laguerre
from support.hippo_cases import DENSE_ONLY
from support.hippo_cases import LAGUERRE
from support.hippo_cases import STRUCTURED
from support.hippo_cases import system

from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.hippo import hippo_matrices
from keras_linrec.ops.structured.hippo import measure_density
from keras_linrec.ops.structured.hippo import reconstruct
from keras_linrec.ops.structured.hippo_measures import MEASURES


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
        # Triangular. The eigenvalues of such a nonnormal matrix cannot be
        # computed accurately, but they are its diagonal.
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


@pytest.mark.parametrize("size", [1, 2, 5, 33, 256])
@pytest.mark.parametrize(("measure", "parameters"), STRUCTURED)
def test_the_structured_form_is_that_of_the_matrices(measure, parameters, size):
    matrix, vector = hippo_matrices(measure, size, **parameters)
    other_matrix, other_vector = system(measure, size, **parameters)
    assert np.abs(matrix - other_matrix).max() < 1e-11 * np.abs(matrix).max()
    assert np.abs(vector - other_vector).max() < 1e-11 * np.abs(vector).max()


@pytest.mark.parametrize(("order", "tilt"), LAGUERRE)
def test_generalized_laguerre_has_the_impulse_response_of_its_basis(
    order, tilt
):
    # The integral of lambda_n L_n(s) exp(-(1 + tilt) / 2 s) exp(-z s); Gauss'
    # quadrature is exact.
    size, z = 12, 0.7
    rate = z + (1 + tilt) / 2
    nodes, weights = roots_laguerre(size)
    n = np.arange(size)[:, None]
    norm = np.exp((gammaln(n + 1) - gammaln(n + order + 1)) / 2)
    basis = norm * eval_genlaguerre(n, order, nodes / rate)
    expected = basis @ weights / rate
    matrix, vector = hippo_matrices(
        "generalized_laguerre", size, order=order, tilt=tilt
    )
    got = np.linalg.solve(z * np.eye(size) - matrix, vector)
    assert np.allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("order", "tilt"), LAGUERRE)
def test_generalized_laguerre_is_theorem_9_once_that_is_normalised(order, tilt):
    size = 256
    n = np.arange(size)
    norm = np.exp((gammaln(n + 1) - gammaln(n + order + 1)) / 2)
    binomial = np.exp(gammaln(n + order + 1) - gammaln(n + 1))
    binomial /= np.exp(gammaln(order + 1))
    printed = np.tril(np.ones((size, size)), -1) + np.eye(size) * (1 + tilt) / 2
    matrix, vector = hippo_matrices(
        "generalized_laguerre", size, order=order, tilt=tilt
    )
    assert np.allclose(matrix, -norm[:, None] * printed / norm)
    assert np.allclose(vector, norm * binomial)


def test_special_cases_are_the_same_matrices():
    for measure, parameters, other, others in (
        ("lagt", {}, "generalized_laguerre", {"order": 0, "tilt": 0}),
        ("legt", {}, "jacobi", {}),
        ("legt", {}, "gegenbauer", {"order": 0.5}),
        ("chebyshev", {"kind": 1}, "gegenbauer", {"order": 0}),
        ("chebyshev", {"kind": 2}, "gegenbauer", {"order": 1}),
        ("chebyshev", {}, "jacobi", {"alpha": -0.5, "beta": -0.5}),
    ):
        for left, right in zip(
            hippo_matrices(measure, 9, **parameters),
            hippo_matrices(other, 9, **others),
        ):
            assert np.array_equal(left, right)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 32])
@pytest.mark.parametrize(
    ("measure", "parameters"), [*STRUCTURED[3:], *DENSE_ONLY]
)
def test_every_measure_with_parameters_is_stable(measure, parameters, size):
    matrix, _ = hippo_matrices(measure, size, **parameters)
    if measure == "generalized_laguerre":
        assert np.array_equal(matrix, np.tril(matrix))
        eigenvalues = np.diag(matrix)
    else:
        eigenvalues = np.linalg.eigvals(matrix)
        # A window forgets faster for larger states, which resolve more of it.
        assert eigenvalues.real.max() < -0.9
    assert eigenvalues.real.max() < 0


def slow(s):
    return np.sin(0.5 * s + 1)


def pulse(s):
    return s**2 * np.exp(-s) * np.cos(s)


def wave(s):
    return np.sin(5 * s + 1) + 0.5 * np.cos(11 * s)


@pytest.mark.parametrize(("measure", "parameters"), [*STRUCTURED, *DENSE_ONLY])
def test_a_driven_system_remembers_its_past(measure, parameters):
    size, steps = 24, 6000
    past, duration, support, bound = wave, 3.0, 1.0, 2e-5
    if measure == "legs":
        past, duration, support, bound = slow, 30.0, 30.0, 0.02
    elif measure in ("lagt", "generalized_laguerre"):
        # A tilting by s^order is no power series at s = 0, where polynomials
        # converge slowly.
        bound = 0.015 if parameters.get("order", 0) > 1 else 0.003
        past, duration, support = pulse, 30.0, 30.0
    matrix, vector = hippo_matrices(measure, size, **parameters)

    # The trapezoidal rule, from the first input, at time 0, to the last.
    dt = duration / steps
    signal = past(duration - np.arange(steps + 1) * dt)
    implicit = np.eye(size) - dt / 2 * matrix
    a_bar = np.linalg.solve(implicit, np.eye(size) + dt / 2 * matrix)
    b_bar = np.linalg.solve(implicit, dt / 2 * vector)
    state = np.zeros(size)
    for left, right in zip(signal[:-1], signal[1:]):
        state = a_bar @ state + b_bar * (left + right)

    positions = (np.arange(4000) + 0.5) * support / 4000
    density = measure_density(measure, positions, **parameters)
    remembered = reconstruct(measure, state, positions, **parameters)
    truth = past(positions)
    error = (density * (remembered - truth) ** 2).sum()
    assert np.sqrt(error / (density * truth**2).sum()) < bound


def test_legs_remembers_polynomials_of_the_warped_time_exactly():
    # u(t) = exp(k t), so that the past is exp(-k s).
    size, positions = 8, np.array([0.0, 0.4, 2.0, 9.0])
    matrix, vector = hippo_matrices("legs", size)
    for k in range(size):
        state = np.linalg.solve(k * np.eye(size) - matrix, vector)
        got = reconstruct("legs", state, positions)
        assert np.allclose(got, np.exp(-k * positions), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("measure", "parameters"), [*STRUCTURED, *DENSE_ONLY])
def test_a_state_of_one_number_is_a_mean_of_the_past(measure, parameters):
    matrix, vector = hippo_matrices(measure, 1, **parameters)
    assert matrix.shape == (1, 1)
    assert vector.shape == (1,)
    assert matrix[0, 0] < 0
    if "la" not in measure:
        # A constant input is remembered exactly.
        assert -vector[0] / matrix[0, 0] == pytest.approx(1)


def test_densities_are_those_that_the_table_names():
    positions = np.array([0.25, 0.5])
    z = 1 - 2 * positions
    for measure, parameters, expected in (
        ("legs", {}, np.exp(-positions)),
        ("lagt", {}, [1, 1]),
        ("legt", {}, [1, 1]),
        (
            "generalized_laguerre",
            {"order": 0.5, "tilt": 2},
            positions**-0.5 * np.exp(-2 * positions),
        ),
        ("chebyshev", {}, 2 / np.pi * (1 - z**2) ** -0.5),
        ("chebyshev", {"kind": 2}, 4 / np.pi * (1 - z**2) ** 0.5),
        ("jacobi", {"alpha": 2}, 3 * positions**2),
        ("jacobi", {"beta": 1}, 2 * (1 - positions)),
    ):
        density = measure_density(measure, positions, **parameters)
        assert np.allclose(density, expected)
    assert measure_density("chebyshev", [0.0])[0] == np.inf


def test_a_batch_of_states_is_reconstructed_at_once():
    states = np.random.default_rng(0).normal(size=(2, 3, 5))
    positions = [0.1, 0.6]
    got = reconstruct("chebyshev", states, positions)
    assert got.shape == (2, 3, 2)
    one = reconstruct("chebyshev", states[1, 2], positions)
    assert np.allclose(got[1, 2], one)


@pytest.mark.parametrize("function", [hippo, hippo_matrices])
@pytest.mark.parametrize(
    ("measure", "size", "parameters", "expected"),
    [
        ("leg", 4, {}, "`measure` .* Received: measure=leg"),
        ("legs", 0, {}, "`state_size` .* Received: state_size=0"),
        ("legs", 4.0, {}, "`state_size` .* Received: state_size=4.0"),
        ("legs", 4, {"order": 1}, "should be none. Received: order=1"),
        ("jacobi", 4, {"order": 1}, "'alpha', 'beta'.* Received: order=1"),
        ("jacobi", 4, {"alpha": -1}, "`alpha` .* -1. Received: alpha=-1"),
        ("jacobi", 4, {"beta": np.nan}, "`beta` .* Received: beta=nan"),
        ("gegenbauer", 4, {"order": -0.5}, "above -1/2. Received: order=-0.5"),
        ("chebyshev", 4, {"kind": 3}, "`kind` .* 1 or 2. Received: kind=3"),
        (
            "generalized_laguerre",
            4,
            {"tilt": -0.1},
            "`tilt` .* of 0 or more. Received: tilt=-0.1",
        ),
        (
            "generalized_laguerre",
            4,
            {"order": "1"},
            "`order` .* above -1. Received: order=1",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    function, measure, size, parameters, expected
):
    with pytest.raises(ValueError, match=expected):
        function(measure, size, **parameters)


@pytest.mark.parametrize(("measure", "parameters"), DENSE_ONLY)
def test_a_measure_without_the_structured_form_is_refused(measure, parameters):
    with pytest.raises(
        ValueError,
        match=r"P \(D \+ T\^-1\) Q: 'legs', 'legt', 'lagt', "
        f"'generalized_laguerre' .* Received: measure={measure}, ",
    ):
        hippo(measure, 4, **parameters)


def test_positions_outside_the_support_are_refused():
    for measure, position, parameters in (
        ("legt", 1.1, {}),
        ("jacobi", -0.1, {}),
        ("legs", -1.0, {}),
        ("lagt", np.nan, {}),
        ("generalized_laguerre", 0.0, {"order": -0.5}),
    ):
        with pytest.raises(ValueError, match="`positions` .* Received: pos"):
            reconstruct(measure, np.ones(3), [position], **parameters)
