"""The HiPPO systems of windows, against the paper and their purpose."""

import numpy as np
import pytest
from scipy.special import beta as beta_function
from scipy.special import gammaln
from scipy.special import roots_jacobi
from support.hippo_cases import jacobi
from support.hippo_cases import system

from keras_linrec.ops.structured.hippo import hippo_matrices
from keras_linrec.ops.structured.hippo import reconstruct

# Pairs of `alpha` and `beta`.
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


def projection(function, size, alpha, beta):
    """The coefficients of the best approximation, and its error."""
    z, weights = roots_jacobi(60, alpha, beta)
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


def derivation(size, alpha, beta):
    """alpha_nk of p_n' = sum_k alpha_nk p_k, by equations 37 and 38."""
    matrix = np.zeros((size, size))
    total = alpha + beta + 1

    def log_norm(n):
        # For n = 0 and a total of 0, the paper's form is 0 times infinity.
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
    # The coefficients of polynomials solve x' = A x + B u.
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
    """Corollary D.6 with theta = 1, with the polynomials' norms used there."""
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
        """The errors for a constant 1: of sum x_n p_n, and omega times it."""
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


def off_diagonal_ranks(matrix):
    """The highest rank of blocks below the diagonal, and of blocks above."""

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
    # The paper's matrix is not either.
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
