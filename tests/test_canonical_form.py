"""The canonical forms, against NumPy's dense matrices in float64."""

import functools

import keras
import numpy as np
import pytest
from autodiff import BACKEND
from autodiff import backend_gradients
from autodiff import numerical_gradients
from autodiff import relative_error
from conformance.cases import float64

from keras_linrec.ops import canonical_form

BOTH = pytest.mark.parametrize("transpose", [False, True])


def compiled(function):
    """On JAX, where compiling operations one by one takes long."""
    if BACKEND != "jax":
        return function
    import jax

    return jax.jit(function)


@functools.cache
def named(name, **options):
    return compiled(functools.partial(getattr(canonical_form, name), **options))


def run(name, *numbers, **options):
    """What a function makes of complex arrays, as a complex array."""
    return array(named(name, **options)(*map(parts, numbers)))


def parts(numbers, dtype="float32"):
    numbers = np.asarray(numbers)
    return tuple(
        keras.ops.convert_to_tensor(part.astype(dtype))
        for part in (numbers.real, numbers.imag)
    )


def array(pair):
    real, imag = (keras.ops.convert_to_numpy(part) for part in pair)
    return real.astype("float64") + 1j * imag.astype("float64")


def rounded(numbers):
    return np.asarray(numbers).astype("complex64").astype("complex128")


def roots(size, seed=0):
    """Of a random polynomial, within the unit circle, as LAPACK orders them."""
    generator = np.random.default_rng(seed)
    coefficients = generator.standard_normal(size) / np.sqrt(size)
    numbers = np.roots(np.concatenate([[1.0], coefficients])).astype(complex)
    outside = np.abs(numbers) > 1.0
    numbers[outside] = 1.0 / numbers[outside].conj()
    return rounded(numbers)


def two_sets(size):
    return np.stack([roots(size), roots(size, seed=1)])


def circle(size):
    return np.exp(2j * np.pi * np.arange(size) / size)


def random_numbers(shape, seed=1):
    generator = np.random.default_rng(seed)
    real, imag = generator.standard_normal((2, *shape))
    return rounded(real + 1j * imag)


def vandermonde(nodes, transpose=False):
    matrix = np.asarray(nodes)[..., None] ** np.arange(np.shape(nodes)[-1])
    return np.swapaxes(matrix, -1, -2) if transpose else matrix


@pytest.mark.parametrize("size", [1, 7])
def test_coefficients_are_those_of_numpy(size):
    eigenvalues = two_sets(size)
    got = run("characteristic_coefficients", eigenvalues)
    expected = [np.poly(row)[:0:-1] for row in eigenvalues]
    assert relative_error(got, expected) < 1e-6


def test_many_roots_in_any_order_keep_their_coefficients():
    got = run("characteristic_coefficients", circle(64))
    # t^64 - 1
    assert np.abs(got + np.eye(1, 64)[0]).max() < 1e-5


def test_coefficients_of_conjugate_pairs_are_real_up_to_rounding():
    got = run("characteristic_coefficients", roots(64))
    assert np.abs(got.imag).max() < 1e-5 * np.abs(got.real).max()


def test_repeated_eigenvalues_have_coefficients_too():
    eigenvalues = np.stack([np.ones(7), -np.ones(7)])
    got = run("characteristic_coefficients", eigenvalues)
    expected = np.array([1.0, 7.0, 21.0, 35.0, 35.0, 21.0, 7.0])
    assert np.array_equal(got[1], expected)
    assert np.array_equal(got[0], expected * (-1.0) ** np.arange(1, 8))


@BOTH
def test_eigenvalues_of_the_companion_matrix_are_those_given(transpose):
    eigenvalues = two_sets(7)
    coefficients = run("characteristic_coefficients", eigenvalues).real
    matrices = keras.ops.convert_to_numpy(
        canonical_form.companion_matrix(coefficients, transpose)
    )
    assert matrices.shape == (2, 7, 7)
    for matrix, expected in zip(matrices, eigenvalues):
        found = np.linalg.eigvals(matrix.astype("float64"))
        distances = np.abs(found[:, None] - expected)
        assert distances.min(axis=0).max() < 1e-5
        assert distances.min(axis=1).max() < 1e-5


def test_nodes_give_the_eigenvectors_of_both_companion_matrices():
    nodes = roots(7)
    coefficients = np.poly(nodes)[:0:-1].real
    matrix, transposed = (
        keras.ops.convert_to_numpy(
            canonical_form.companion_matrix(coefficients, transpose)
        )
        for transpose in (False, True)
    )
    v = vandermonde(nodes)
    assert np.abs(v @ matrix - nodes[:, None] * v).max() < 1e-6
    assert np.abs(transposed @ v.T - v.T * nodes).max() < 1e-6


@BOTH
@pytest.mark.parametrize("size", [1, 7])
def test_products_are_those_of_the_dense_matrix(size, transpose):
    nodes, vectors = roots(size), random_numbers((3, 2, size))
    got = run("vandermonde_multiply", nodes, vectors, transpose=transpose)
    expected = vectors @ vandermonde(nodes, transpose).T
    assert relative_error(got, expected) < 1e-6


@BOTH
@pytest.mark.parametrize("size", [1, 7])
def test_solutions_are_those_of_the_dense_matrix(size, transpose):
    nodes, values = two_sets(size), random_numbers((3, 2, size))
    got = run("vandermonde_solve", nodes, values, transpose=transpose)
    matrices = vandermonde(nodes, transpose)
    expected = np.linalg.solve(matrices, values[..., None])[..., 0]
    assert relative_error(got, expected) < 1e-5


@BOTH
def test_a_solution_undoes_a_product_of_many_nodes_in_any_order(transpose):
    nodes, vectors = circle(64), random_numbers((64,))
    values = run("vandermonde_multiply", nodes, vectors, transpose=transpose)
    got = run("vandermonde_solve", nodes, values, transpose=transpose)
    assert relative_error(got, vectors) < 1e-5


def test_a_refinement_gains_digits():
    nodes, vectors = circle(64), random_numbers((64,))
    values = run("vandermonde_multiply", nodes, vectors, transpose=False)
    fine = run("vandermonde_solve", nodes, values, transpose=False)
    coarse = run("vandermonde_solve", nodes, values, refinements=0)
    error = relative_error(coarse, vectors)
    assert error < 1e-3
    assert relative_error(fine, vectors) < 0.5 * error


def test_values_at_conjugate_pairs_have_real_coefficients():
    nodes = two_sets(7)
    values = vandermonde(nodes) @ np.arange(1.0, 8.0)
    values = np.stack([values, 2 * values, 3 * values])
    got = run("vandermonde_solve", nodes, values, transpose=False)
    assert np.abs(got.imag).max() < 1e-4


@pytest.mark.parametrize("inverse_powers", [False, True])
@pytest.mark.parametrize("size", [1, 7])
def test_input_is_the_last_column_of_the_inverse(size, inverse_powers):
    eigenvalues = two_sets(size)
    basis = vandermonde(eigenvalues, transpose=True)
    if inverse_powers:
        basis = basis * eigenvalues[:, None] ** (1.0 - size)
    expected = np.linalg.inv(basis)[..., -1]
    got = run("canonical_input", eigenvalues, inverse_powers=inverse_powers)
    assert relative_error(got, expected) < 1e-5


def test_input_of_hundreds_of_eigenvalues_does_not_overflow():
    angles = np.pi * (np.arange(200) + 0.5) / 200
    eigenvalues = np.stack([circle(200), np.cos(angles)])
    got = run("canonical_input", eigenvalues)
    assert relative_error(got[0], circle(200) / 200) < 1e-4
    # At Chebyshev nodes it has itself magnitudes beyond float32.
    assert not np.isfinite(got[1]).any()
    got = run("canonical_input", eigenvalues, normalized=True)
    assert relative_error(got[0], circle(200)) < 1e-4
    expected = (-1.0) ** np.arange(200) * np.sin(angles)
    assert np.abs(got[1] - expected).max() < 1e-3


def test_input_of_conjugate_eigenvalues_is_conjugate():
    upper = random_numbers((2, 3))
    eigenvalues = np.concatenate([upper, upper.conj(), [[1.0], [-1.0]]], 1)
    got = run("canonical_input", eigenvalues, inverse_powers=False)
    assert relative_error(got[:, 3:6], got[:, :3].conj()) < 1e-5
    assert relative_error(got[:, 6], got[:, 6].real) < 1e-5


def test_equal_nodes_give_no_numbers():
    nodes = two_sets(7)
    nodes[0, 4] = nodes[0, 2]
    values = random_numbers((3, 2, 7))
    for result in (
        run("vandermonde_solve", nodes, values, transpose=False),
        run("vandermonde_solve", nodes, values, transpose=True),
        run("canonical_input", nodes, inverse_powers=False),
    ):
        assert not np.isfinite(result[..., 0, :]).all()
        assert np.isfinite(result[..., 1, :]).all()


def test_each_node_is_furthest_from_those_before():
    nodes = two_sets(7)
    orders = keras.ops.convert_to_numpy(named("leja_order")(parts(nodes)))
    for row, order in zip(nodes, orders):
        assert sorted(order) == list(range(7))
        for count in range(1, 7):
            distances = np.abs(row[:, None] - row[order[:count]])
            products = distances.prod(axis=1)
            assert products[order[count]] > 0.999 * products.max()


def test_equal_nodes_have_an_order():
    nodes = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    orders = keras.ops.convert_to_numpy(named("leja_order")(parts(nodes)))
    assert np.array_equal(np.sort(orders), [np.arange(7)] * 2)
    assert list(orders[0, :2]) == [0, 2]


def from_parts(arguments):
    return [
        real + 1j * imag for real, imag in zip(arguments[::2], arguments[1::2])
    ]


def both_parts(numbers):
    return [numbers.real, numbers.imag]


def dense_input(eigenvalues):
    basis = vandermonde(eigenvalues, transpose=True)
    return np.linalg.inv(basis)[:, -1]


def scaled_input(eigenvalues):
    result = dense_input(eigenvalues) * eigenvalues ** (len(eigenvalues) - 1)
    return result / np.abs(result).max()


# Each by its name and options, with its definition.
DEFINITIONS = {
    "forms": [
        ("characteristic_coefficients", {}, lambda z, _: np.poly(z)[:0:-1]),
        (
            "canonical_input",
            {"inverse_powers": True, "normalized": True},
            lambda z, _: scaled_input(z),
        ),
    ],
    "products": [
        ("vandermonde_multiply", {}, lambda z, c: vandermonde(z) @ c),
        (
            "vandermonde_multiply",
            {"transpose": True},
            lambda z, c: vandermonde(z).T @ c,
        ),
    ],
    "solutions": [
        (
            "vandermonde_solve",
            {},
            lambda z, f: np.linalg.solve(vandermonde(z), f),
        ),
        (
            "vandermonde_solve",
            {"transpose": True},
            lambda z, f: np.linalg.solve(vandermonde(z).T, f),
        ),
    ],
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_gradients(name):
    # Magnitudes apart: the greatest one is not differentiable at a tie.
    nodes = rounded([0.9, -0.7 + 0.2j, 0.1 + 0.8j, 0.3 - 0.6j, -0.2 - 0.9j])
    arrays = [*both_parts(nodes), *both_parts(random_numbers((5,)))]
    rows = len(DEFINITIONS[name])
    weights = both_parts(random_numbers((rows, 5), seed=2))

    def of_tensors(arguments):
        pairs = arguments[:2], arguments[2:]
        results = [
            getattr(canonical_form, function)(
                *(pairs[:1] if name == "forms" else pairs), **options
            )
            for function, options, _ in DEFINITIONS[name]
        ]
        return [keras.ops.stack(part) for part in zip(*results)]

    def define(arguments):
        numbers = from_parts(arguments)
        return both_parts(
            np.stack([f(*numbers) for _, _, f in DEFINITIONS[name]])
        )

    got = backend_gradients(compiled(of_tensors), arrays, weights)
    expected = numerical_gradients(define, arrays, weights)
    for slope, reference in zip(got, expected):
        assert relative_error(slope, reference) < 1e-4


@float64()
def test_float64_stays_float64():
    nodes, vectors = roots(40), random_numbers((40,))
    pair, vector = parts(nodes, "float64"), parts(vectors, "float64")
    for transpose in (False, True):
        values = canonical_form.vandermonde_multiply(pair, vector, transpose)
        got = canonical_form.vandermonde_solve(pair, values, transpose)
        got = array(got)
        assert relative_error(got, vectors) < 1e-11
    ordered = nodes[keras.ops.convert_to_numpy(canonical_form.leja_order(pair))]
    got = array(canonical_form.characteristic_coefficients(pair))
    assert relative_error(got, np.poly(ordered)[:0:-1]) < 1e-12
    got = array(canonical_form.canonical_input(pair))
    distances = nodes[:, None] - nodes + np.eye(40)
    assert relative_error(got, 1.0 / distances.prod(axis=1)) < 1e-12


def test_a_compiled_model_of_any_batch_size_solves():
    class Solve(keras.layers.Layer):
        def call(self, values):
            nodes = parts(roots(5))
            return canonical_form.vandermonde_solve(
                nodes, (values, 0.0 * values)
            )[0]

    model = keras.Sequential([keras.Input((5,)), Solve()])
    matrix = vandermonde(roots(5))
    for batch in (1, 3):
        values = random_numbers((batch, 5)).real
        got = model.predict_on_batch(values.astype("float32"))
        expected = np.linalg.solve(matrix, values.T).T.real
        assert relative_error(got, expected) < 1e-5


def test_wrong_arguments_are_named():
    tensor = np.ones(3, "float32")
    with pytest.raises(ValueError, match="`eigenvalues` should be a pair"):
        canonical_form.characteristic_coefficients(tensor)
    with pytest.raises(ValueError, match="`values` should be a pair"):
        canonical_form.vandermonde_solve((tensor, tensor), tensor)
    with pytest.raises(ValueError, match="`nodes` and `coefficients` should"):
        canonical_form.vandermonde_multiply(
            (tensor, tensor), (tensor[:2], tensor[:2])
        )
    with pytest.raises(ValueError, match="`coefficients` should be a tensor"):
        canonical_form.companion_matrix((tensor, tensor))
