"""The HiPPO matrices, against the paper and against what they are for."""

import keras
import numpy as np
import pytest
from definitions import lssl as definition
from numpy.polynomial import legendre
from scipy.special import beta as beta_function
from scipy.special import eval_genlaguerre
from scipy.special import eval_jacobi
from scipy.special import gammaln
from scipy.special import roots_jacobi
from scipy.special import roots_laguerre

from keras_linrec.initializers import HiPPO
from keras_linrec.ops.hippo import MEASURES
from keras_linrec.ops.hippo import hippo
from keras_linrec.ops.hippo import hippo_matrices
from keras_linrec.ops.hippo import measure_density
from keras_linrec.ops.hippo import reconstruct

LAGUERRE = [(0.0, 0.0), (0.0, 1.0), (0.5, 1.0), (-0.5, 0.5), (1.5, 2.0)]
EXPONENTS = [
    (0.0, 0.0),
    (-0.5, -0.5),
    (0.5, 0.5),
    (-0.8, -0.8),
    (2.0, 2.0),
    (0.0, 1.5),
    (0.0, -0.5),
    (1.0, 0.0),
    (-0.5, 2.0),
    (1.3, -0.4),
    (-0.7, -0.6),
]
STRUCTURED = [
    *((measure, {}) for measure in MEASURES),
    *(
        ("generalized_laguerre", {"order": order, "tilt": tilt})
        for order, tilt in LAGUERRE
    ),
    ("gegenbauer", {"order": 0.5}),
    ("jacobi", {}),
    ("jacobi", {"beta": 0.5}),
    ("jacobi", {"beta": 3}),
]
DENSE_ONLY = [
    ("chebyshev", {}),
    ("chebyshev", {"kind": 2}),
    ("gegenbauer", {"order": 0.2}),
    ("gegenbauer", {"order": 2.0}),
    ("jacobi", {"alpha": -0.5, "beta": 1.0}),
    ("jacobi", {"alpha": 1.5, "beta": -0.5}),
    ("jacobi", {"alpha": 0.0, "beta": -0.5}),
]


def system(measure, size, **parameters):
    parts = hippo(measure, size, **parameters)
    names = [f"transition_{part}" for part in "pdqt"]
    return definition.transition(dict(zip(names, parts))), parts.b


def jacobi(z, size, alpha, beta):
    """Orthonormal polynomials (size, points); the measure's integral is 1."""
    nodes, weights = roots_jacobi(size + 2, alpha, beta)
    rows = []
    for n in range(size):
        square = eval_jacobi(n, alpha, beta, nodes) ** 2
        norm = (weights * square).sum() / weights.sum()
        rows.append(eval_jacobi(n, alpha, beta, z) / np.sqrt(norm))
    return np.array(rows)


def projection(function, size, alpha, beta, points=60):
    """The coefficients of the best approximation, and its error."""
    z, weights = roots_jacobi(points, alpha, beta)
    weights = weights / weights.sum()
    values = function((1 - z) / 2)
    basis = jacobi(z, size, alpha, beta)
    coefficients = basis @ (weights * values)

    def error(state):
        rest = state @ basis - values
        return np.sqrt((weights * abs(rest) ** 2).sum())

    return coefficients, error


def window_of(alpha, beta, size):
    return hippo_matrices("jacobi", size, alpha=alpha, beta=beta)


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
    # The integral of lambda_n L_n(s) exp(-(1 + tilt) / 2 s) exp(-z s), which
    # Gauss' quadrature gives exactly.
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


def derivation(size, alpha, beta):
    """alpha_nk of p_n' = sum_k alpha_nk p_k, by equations 37 and 38."""
    matrix = np.zeros((size, size))
    total = alpha + beta + 1

    def log_norm(n):
        # At n = 0 the paper's form is 0 times infinity for a total of 0.
        tail = gammaln(total + 1)
        if n:
            tail = np.log(2 * n + total) + gammaln(n + total)
        logs = gammaln([n + alpha + 1, n + beta + 1]).sum() - gammaln(n + 1)
        return (logs - tail) / 2, tail

    for n in range(1, size):
        for k in range(n):
            norm_k, tail = log_norm(k)
            scale = norm_k + tail - log_norm(n)[0] - gammaln(n + total)
            for exponent, sign in ((beta, 1), (alpha, -((-1) ** (n - k)))):
                ratio = gammaln(n + exponent + 1) - gammaln(k + exponent + 1)
                matrix[n, k] += sign * np.exp(scale + ratio) / 2
    return matrix


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_a_window_moves_by_the_derivatives_of_equation_37(alpha, beta):
    for size in (1, 2, 7, 40):
        matrix, vector = window_of(alpha, beta, size)
        now = jacobi(np.ones(1), size, alpha, beta)[:, 0]
        got = matrix + vector[:, None] * now
        expected = 2 * derivation(size, alpha, beta).T
        scale = np.abs(vector[:, None] * now).max()
        assert np.abs(got - expected).max() < 1e-11 * scale


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
@pytest.mark.parametrize("size", [1, 2, 9])
def test_polynomials_of_time_are_remembered_exactly(alpha, beta, size):
    # Their coefficients solve x' = A x + B u.
    matrix, vector = window_of(alpha, beta, size)
    time = 0.3
    for degree in range(size):
        state, error = projection(
            lambda s, d=degree: (time - s) ** d, size, alpha, beta
        )
        assert error(state) < 1e-10
        change, _ = projection(
            lambda s, d=degree: d * (time - s) ** max(d - 1, 0),
            size,
            alpha,
            beta,
        )
        got = matrix @ state + vector * time**degree
        assert np.abs(got - change).max() < 1e-10 * np.abs(matrix).max()


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_a_window_of_a_sine_is_near_its_best_approximation(alpha, beta):
    size = 16
    matrix, vector = window_of(alpha, beta, size)
    for frequency in (8.0, 16.0):
        best, error = projection(
            lambda s, f=frequency: np.exp(-1j * f * s), size, alpha, beta
        )
        state = np.linalg.solve(
            1j * frequency * np.eye(size) - matrix, vector.astype(complex)
        )
        assert error(best) < 2e-4
        assert error(best) < error(state) < 2.1 * error(best)


def paper_window(alpha, beta, size):
    """Corollary D.6 with theta = 1, for polynomials normalised as there."""
    mass = 2 ** (alpha + beta + 1) * beta_function(alpha + 1, beta + 1)
    now, end = jacobi(np.array([1.0, -1.0]), size, alpha, beta).T / mass**0.5
    lower = derivation(size, alpha, beta)
    return -2 * lower - 2 * np.outer(end, end), 2 * now, mass


@pytest.mark.parametrize(
    ("alpha", "beta", "growth", "plain", "tilted"),
    [
        (-0.5, -0.5, 42.0, 0.83, 6.4),
        (0.5, 0.5, 4.3, 0.86, 0.41),
        (1.5, 1.5, 10.2, 5.7, 2.4),
    ],
)
def test_corollary_d6_remembers_for_legendre_only(
    alpha, beta, growth, plain, tilted
):
    size = 16

    def errors(alpha, beta):
        """Of a constant 1 at rest: by sum x_n p_n, and by omega times it."""
        matrix, vector, mass = paper_window(alpha, beta, size)
        state = -np.linalg.solve(matrix, vector)
        z, weights = roots_jacobi(60, alpha, beta)
        weights = weights / weights.sum()
        remembered = state @ jacobi(z, size, alpha, beta) / mass**0.5
        omega = (1 - z) ** alpha * (1 + z) ** beta
        return [
            np.sqrt((weights * (scale * remembered - 1) ** 2).sum())
            for scale in (1, omega)
        ]

    assert max(errors(0.0, 0.0)) < 1e-12
    eigenvalues = np.linalg.eigvals(paper_window(alpha, beta, size)[0])
    assert eigenvalues.real.max() == pytest.approx(growth, rel=0.02)
    assert errors(alpha, beta) == pytest.approx([plain, tilted], rel=0.02)

    matrix, vector = window_of(alpha, beta, size)
    state = -np.linalg.solve(matrix, vector)
    assert np.allclose(state, np.eye(size)[0], atol=1e-11)


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
        # A window forgets the faster, the more of it the state resolves.
        assert eigenvalues.real.max() < -0.9
    assert eigenvalues.real.max() < 0


def off_diagonal_ranks(matrix):
    """The highest rank of a block below the diagonal, and of one above."""

    def highest(blocks):
        singular = [np.linalg.svd(b, compute_uv=False) for b in blocks]
        return max((s > 1e-9 * s[0]).sum() for s in singular)

    rows = range(1, len(matrix))
    return (
        highest(matrix[i:, :i] for i in rows),
        highest(matrix[:i, i:] for i in rows),
    )


def test_gegenbauers_matrix_is_not_1_quasiseparable():
    for measure, parameters, ranks in (
        ("legt", {}, (1, 1)),
        ("jacobi", {"beta": 1.5}, (1, 1)),
        ("chebyshev", {"kind": 1}, (1, 3)),
        ("chebyshev", {"kind": 2}, (1, 3)),
        ("gegenbauer", {"order": 2.0}, (1, 3)),
        ("jacobi", {"alpha": -0.5, "beta": 0.5}, (1, 2)),
    ):
        matrix, _ = hippo_matrices(measure, 16, **parameters)
        assert off_diagonal_ranks(matrix) == ranks
    # Nor is it in the paper's form.
    assert off_diagonal_ranks(paper_window(0.5, 0.5, 16)[0]) == (2, 1)


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.5, 0.5), (2.0, 0.7), (1.0, 0.0), (0.0, -0.5)]
)
def test_windows_of_alpha_from_0_on_are_a_structured_one_in_another_basis(
    alpha, beta
):
    size, positions = 12, np.linspace(0, 1, 7)

    def remembered(measure, matrix, vector, **parameters):
        state = np.linalg.solve(6.0 * np.eye(size) - matrix, vector)
        return reconstruct(measure, state, positions, **parameters)

    dense = remembered(
        "jacobi", *window_of(alpha, beta, size), alpha=alpha, beta=beta
    )
    structured = max(beta, 0.0)
    other = remembered(
        "jacobi", *system("jacobi", size, beta=structured), beta=structured
    )
    assert np.allclose(dense, other, rtol=1e-9, atol=1e-9)


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
        # A tilting by s^order is no power series of s at 0, where the
        # polynomials are slow to follow it.
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
        # Of a constant, that constant.
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
            "`tilt` .* from 0 on. Received: tilt=-0.1",
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


@pytest.mark.parametrize(
    ("measure", "parameters"), [STRUCTURED[0], STRUCTURED[5], DENSE_ONLY[4]]
)
def test_the_initializer_fills_weights_of_any_leading_shape(
    measure, parameters
):
    matrix, vector = hippo_matrices(measure, 5, **parameters)
    for shape in ((5, 5), (3, 5, 5), (2, 3, 5, 5)):
        got = HiPPO(measure, **parameters)(shape)
        assert tuple(got.shape) == shape
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        got = keras.ops.convert_to_numpy(got)
        assert np.allclose(got, np.broadcast_to(matrix, shape), rtol=1e-6)
    for shape in ((5,), (2, 3, 5)):
        got = HiPPO(measure, part="input", **parameters)(shape, "bfloat16")
        assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
        got = keras.ops.convert_to_numpy(keras.ops.cast(got, "float32"))
        assert np.allclose(got, np.broadcast_to(vector, shape), rtol=0.01)


def test_the_initializer_has_the_structured_form_where_there_is_one():
    initializer = HiPPO("generalized_laguerre", order=0.5, tilt=2.0)
    expected = hippo("generalized_laguerre", 6, order=0.5, tilt=2.0)
    for got, part in zip(initializer.structured(6), expected):
        assert np.array_equal(got, part)
    with pytest.raises(ValueError, match="Received: measure=chebyshev, kind=1"):
        HiPPO("chebyshev").structured(6)


def test_the_initializer_is_read_back_from_its_config():
    initializer = HiPPO("generalized_laguerre", part="input", order=0.5)
    assert keras.saving.get_registered_name(HiPPO) == "keras_linrec>HiPPO"
    config = keras.initializers.serialize(initializer)
    other = keras.initializers.deserialize(config)
    assert other.get_config() == {
        "measure": "generalized_laguerre",
        "part": "input",
        "order": 0.5,
        "tilt": 1.0,
    }
    assert np.array_equal(
        keras.ops.convert_to_numpy(initializer((2, 4))),
        keras.ops.convert_to_numpy(other((2, 4))),
    )


def test_the_initializer_names_a_wrong_argument():
    for arguments, expected in (
        ({"part": "output"}, "`part` .* Received: part=output"),
        ({"measure": "leg"}, "`measure` .* Received: measure=leg"),
        ({"order": 1.0}, "Received: order=1.0"),
    ):
        with pytest.raises(ValueError, match=expected):
            HiPPO(**arguments)
    for part, shape in (
        ("transition", (5,)),
        ("transition", (5, 4)),
        ("input", ()),
    ):
        with pytest.raises(ValueError, match="`shape` .* Received: shape="):
            HiPPO(part=part)(shape)
