"""The canonical form's input, against NumPy's dense matrices in float64."""

import functools

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.conformance_cases import float64

from keras_linrec.ops import canonical_form


@functools.cache
def named(name, **options):
    return compiled(functools.partial(getattr(canonical_form, name), **options))


def run(name, *numbers, **options):
    """Apply a function of pairs to complex arrays."""
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
    """Roots of a random polynomial, in the unit circle and LAPACK's order."""
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


def vandermonde(nodes):
    """The matrices whose columns are the nodes' powers."""
    return nodes[..., None, :] ** np.arange(nodes.shape[-1])[:, None]


@pytest.mark.parametrize("inverse_powers", [False, True])
@pytest.mark.parametrize("size", [1, 7])
def test_input_is_the_last_column_of_the_inverse(size, inverse_powers):
    eigenvalues = two_sets(size)
    basis = vandermonde(eigenvalues)
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
    # At Chebyshev nodes the result itself overflows float32.
    assert not np.isfinite(got[1]).any()
    got = run("canonical_input", eigenvalues, normalized=True)
    assert relative_error(got[0], circle(200)) < 1e-4
    expected = (-1.0) ** np.arange(200) * np.sin(angles)
    assert np.abs(got[1] - expected).max() < 1e-3


@pytest.mark.parametrize("inverse_powers", [False, True])
def test_input_of_small_eigenvalues_does_not_underflow(inverse_powers):
    small = rounded(1e-20 * np.array([1.0, 2.0, -1.5 + 1e-3j]))
    options = {"inverse_powers": inverse_powers, "normalized": True}
    got = run("canonical_input", small, **options)
    expected = run("canonical_input", rounded(1e20 * small), **options)
    assert relative_error(got, expected) < 1e-5


def test_input_of_conjugate_eigenvalues_is_conjugate():
    upper = random_numbers((2, 3))
    eigenvalues = np.concatenate([upper, upper.conj(), [[1.0], [-1.0]]], 1)
    got = run("canonical_input", eigenvalues, inverse_powers=False)
    assert relative_error(got[:, 3:6], got[:, :3].conj()) < 1e-5
    assert relative_error(got[:, 6], got[:, 6].real) < 1e-5


def test_equal_eigenvalues_give_no_numbers():
    eigenvalues = two_sets(7)
    eigenvalues[0, 4] = eigenvalues[0, 2]
    got = run("canonical_input", eigenvalues, inverse_powers=False)
    assert not np.isfinite(got[0]).all()
    assert np.isfinite(got[1]).all()


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


def scaled_input(eigenvalues):
    basis = vandermonde(eigenvalues)
    result = np.linalg.inv(basis)[:, -1]
    result = result * eigenvalues ** (len(eigenvalues) - 1)
    return result / np.abs(result).max()


def test_gradients():
    # With distinct magnitudes: the maximum is not differentiable at a tie.
    eigenvalues = rounded(
        [0.9, -0.7 + 0.2j, 0.1 + 0.8j, 0.3 - 0.6j, -0.2 - 0.9j]
    )
    arrays = [eigenvalues.real, eigenvalues.imag]
    weights = random_numbers((5,), seed=2)
    weights = [weights.real, weights.imag]

    def of_tensors(pair):
        return canonical_form.canonical_input(
            tuple(pair), inverse_powers=True, normalized=True
        )

    def define(pair):
        result = scaled_input(pair[0] + 1j * pair[1])
        return [result.real, result.imag]

    got = backend_gradients(of_tensors, arrays, weights)
    expected = numerical_gradients(define, arrays, weights)
    for slope, reference in zip(got, expected):
        assert relative_error(slope, reference) < 1e-4


@float64()
def test_float64_stays_float64():
    eigenvalues = roots(40)
    got = array(canonical_form.canonical_input(parts(eigenvalues, "float64")))
    distances = eigenvalues[:, None] - eigenvalues + np.eye(40)
    assert relative_error(got, 1.0 / distances.prod(axis=1)) < 1e-12


def test_wrong_arguments_are_named():
    tensor = np.ones(3, "float32")
    with pytest.raises(ValueError, match="`eigenvalues` should be a pair"):
        canonical_form.canonical_input(tensor)
    with pytest.raises(ValueError, match="`nodes` should be of one size"):
        canonical_form.leja_order((tensor, tensor[:2]))
