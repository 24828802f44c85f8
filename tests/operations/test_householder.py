"""Products of reflections against one reflection after another."""

import numpy as np
import pytest
from definitions import orthogonal_rnn as definition
from support.autodiff import backend_gradients
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.units import array

from keras_linrec.initializers import ReflectorPairs
from keras_linrec.ops import householder
from keras_linrec.ops import reflection_product
from keras_linrec.ops import unitary_matrix


def reflectors(rows, columns, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((rows, columns))


def define(arguments):
    """The real product, or with phases the unitary one."""
    names = ("reflectors", "phases")[: len(arguments)]
    kernel = np.zeros((1, arguments[0].shape[0]))
    weights = {"kernel": kernel, **dict(zip(names, arguments))}
    return [definition.transition(weights)]


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2, 2), (5, 3), (130, 129), (300, 260)]
)
def test_a_product_is_that_of_its_reflections(rows, columns):
    vectors = reflectors(rows, columns).astype("float32")
    got = array(reflection_product(vectors))
    (expected,) = define([vectors.astype("float64")])
    assert np.abs(got - expected).max() < 1e-5
    assert np.abs(got.T @ got - np.eye(rows)).max() < 1e-5


def test_nearly_equal_reflections_stay_accurate():
    vectors = array(ReflectorPairs(1e-4, seed=1)((128, 64)))
    got = array(reflection_product(vectors))
    (expected,) = define([vectors.astype("float64")])
    assert np.abs(got - expected).max() < 5e-6
    assert np.abs(got - np.eye(128)).max() < 0.05


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_length_of_a_vector_does_not_count(scale):
    vectors = reflectors(6, 3).astype("float32")
    got = array(reflection_product(vectors * np.float32(scale)))
    assert np.abs(got - array(reflection_product(vectors))).max() < 1e-6


def test_a_vector_of_zeros_reflects_nothing():
    vectors = reflectors(5, 3)
    vectors[:, 1] = 0

    def run(arguments):
        return [reflection_product(arguments[0])]

    got = array(run([vectors.astype("float32")])[0])
    expected = np.eye(5)
    for j in (0, 2):
        expected = expected @ definition.householder(vectors[j:, j], 5)
    assert np.abs(got - expected).max() < 1e-6
    (slope,) = backend_gradients(run, [vectors], [np.ones((5, 5))])
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("columns", [1, 3, 4])
def test_a_unitary_matrix_is_that_of_its_reflections_and_phases(columns):
    vectors = reflectors(10, columns).astype("float32")
    phases = np.linspace(-3, 3, 5).astype("float32")
    got = array(unitary_matrix(vectors, phases))
    (expected,) = define([vectors.astype("float64"), phases])
    assert np.abs(got - expected).max() < 2e-6
    assert np.abs(got.T @ got - np.eye(10)).max() < 2e-6


@pytest.mark.parametrize("complex_field", [False, True])
def test_gradients_are_those_of_the_definition(complex_field):
    arguments = [reflectors(6, 3)]
    run = reflection_product
    if complex_field:
        arguments.append(np.linspace(-1, 1, 3))
        run = unitary_matrix
    weights = [reflectors(6, 6, seed=1)]
    got = backend_gradients(lambda a: [run(*a)], arguments, weights)
    expected = numerical_gradients(define, arguments, weights)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5
    # What is above the diagonal does not count, and has no slope.
    assert (np.triu(got[0][: 6 // (1 + complex_field)], 1) == 0).all()


def test_many_reflections_are_taken_in_halves(monkeypatch):
    vectors = reflectors(23, 19).astype("float32")
    whole = array(reflection_product(vectors))
    monkeypatch.setattr(householder, "_ONE_BY_ONE", 4)
    assert np.abs(array(reflection_product(vectors)) - whole).max() < 2e-6
