"""The inverse of a matrix, by products or by the backend."""

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.conformance_cases import float64
from support.units import array

from keras_linrec.ops.algebra.inverse import by_iteration
from keras_linrec.ops.algebra.inverse import inverse

EITHER = pytest.mark.parametrize("function", [inverse, by_iteration])


def matrices(size, condition=10.0, count=2):
    generator = np.random.default_rng(size)
    left, right = (
        np.linalg.qr(generator.standard_normal((count, size, size)))[0]
        for _ in range(2)
    )
    values = np.logspace(0, -np.log10(condition), size)
    return (left * values @ right).astype("float32").astype("float64")


def invert(function, given):
    return array(compiled(lambda m: function(m[0]))(tensors([given])))


@EITHER
@pytest.mark.parametrize("size", [1, 2, 33])
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_inverse_is_numpys(function, size, condition):
    given = matrices(size, condition)
    got = invert(function, given)
    # How a processor's library adds up 33 products decides the last digits.
    assert relative_error(got, np.linalg.inv(given)) < 3e-6 * condition**0.5


@EITHER
@pytest.mark.parametrize("condition", [1e5, 7e5, 1e9])
def test_the_inverse_in_float64_is_exact_to_float64(function, condition):
    given = matrices(16, condition)
    with float64():
        got = array(compiled(function)(keras.ops.convert_to_tensor(given)))
    assert relative_error(got, np.linalg.inv(given)) < 1e-15 * condition


@EITHER
def test_columns_of_any_scale_are_no_matter(function):
    given = matrices(5) * np.array([1e-6, 1.0, 1e5, 1e-3, 10.0])
    expected = np.linalg.inv(given)
    scale = np.abs(expected).max(axis=-1, keepdims=True)
    error = np.abs(invert(function, given) - expected) / scale
    assert error.max() < 1e-5


@EITHER
def test_gradient_is_that_of_the_inverse(function):
    given = matrices(4, count=1)
    weights = [np.random.default_rng(0).standard_normal((1, 4, 4))]
    got = backend_gradients(lambda m: [function(m[0])], [given], weights)
    expected = numerical_gradients(
        lambda m: [np.linalg.inv(m[0])], [given], weights
    )
    assert relative_error(got[0], expected[0]) < 1e-4


def test_a_singular_matrix_gives_no_number_by_products():
    given = matrices(4)
    given[0, :, 1] = given[0, :, 2]
    got = invert(by_iteration, given)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()
    assert np.isnan(invert(by_iteration, np.zeros((2, 2)))).all()


def test_a_nearly_singular_matrix_gives_no_wrong_number_by_products():
    assert np.isnan(invert(by_iteration, matrices(16, 1e9))).all()
