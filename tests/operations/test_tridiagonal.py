"""Tridiagonal matrices, against NumPy's dense ones in float64."""

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.units import array

from keras_linrec import ops
from keras_linrec.kernels.operations.structured import tridiagonal

SYSTEMS = 3


def scan(decay, inputs, initial_state, reverse):
    outputs, state = ops.linear_scan(
        decay[0], inputs[0], initial_state[0], reverse
    )
    return (outputs,), (state,)


def solve_by_scans(bands, right):
    return tridiagonal.solve_by_scans(scan, bands, right)


SOLVERS = {"solve": tridiagonal.solve, "solve_by_scans": solve_by_scans}
either = pytest.mark.parametrize("solver", SOLVERS)


def numbers(size):
    """Bands (N, systems) whose pivots stay away from zero, right (N, 2)."""
    generator = np.random.default_rng(size)
    above, below = generator.uniform(-1, 1, (2, size, SYSTEMS))
    diagonal = generator.uniform(2, 3, (size, SYSTEMS))
    return above, diagonal, below, generator.standard_normal((size, 2))


def dense(above, diagonal, below):
    """The matrices (systems, N, N)."""
    return np.stack(
        [
            np.diag(a[:-1], 1) + np.diag(d) + np.diag(b[:-1], -1)
            for a, d, b in zip(above.T, diagonal.T, below.T)
        ]
    )


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_entries_move_along_an_axis(axis):
    given = np.arange(1.0, 25.0).reshape(2, 3, 4)
    (tensor,) = tensors([given])
    for move, by, first in (
        (tridiagonal.from_above, 1, 0),
        (tridiagonal.from_below, -1, -1),
    ):
        expected = np.roll(given, by, axis)
        np.moveaxis(expected, axis, 0)[first] = 0.0
        assert np.array_equal(array(move(tensor, axis)), expected)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_product_is_that_of_the_dense_matrix(size):
    *bands, right = numbers(size)
    for system, matrix in enumerate(dense(*bands)):
        given = [band[:, system, None] for band in bands]
        got = tridiagonal.multiply(tensors(given), tensors([right])[0])
        assert relative_error(array(got), matrix @ right) < 1e-6
        above, diagonal, below = tensors(given)
        transposed = below, diagonal, above
        got = tridiagonal.multiply(transposed, tensors([right])[0])
        assert relative_error(array(got), matrix.T @ right) < 1e-6


@either
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_solution_is_that_of_the_dense_matrix(solver, size):
    *bands, right = numbers(size)
    run = compiled(lambda given: SOLVERS[solver](given[:3], given[3]))
    expected = np.linalg.solve(dense(*bands), right)
    got = array(run(tensors([*bands, right])))
    assert relative_error(got, expected) < 1e-6


@either
def test_gradients_are_those_of_the_dense_solution(solver):
    arrays = numbers(4)
    weights = [np.random.default_rng(0).standard_normal((SYSTEMS, 4, 2))]

    def solve(given):
        return [SOLVERS[solver](given[:3], given[3])]

    got = backend_gradients(solve, arrays, weights)
    expected = numerical_gradients(
        lambda given: [np.linalg.solve(dense(*given[:3]), given[3])],
        arrays,
        weights,
    )
    for slope, reference in zip(got, expected):
        assert relative_error(slope, reference) < 1e-4
    # The last off-diagonal entries have no effect.
    assert not got[0][-1].any() and not got[2][-1].any()


def test_one_elimination_serves_a_system_and_its_transpose():
    above, diagonal, below, _ = (
        keras.ops.convert_to_tensor(part[None].astype("float32"))
        for part in numbers(5)
    )
    right = np.random.default_rng(1).standard_normal((2, 5, SYSTEMS))
    pivots = tridiagonal.pivots((above * below)[:, :-1], diagonal)
    matrices = dense(*numbers(5)[:3])
    for bands, expected in (
        ((above, below), matrices),
        ((below, above), matrices.swapaxes(1, 2)),
    ):
        got = tridiagonal.substitute(scan, *bands, pivots, tensors([right])[0])
        wanted = np.einsum("snm,bms->bns", np.linalg.inv(expected), right)
        assert relative_error(array(got), wanted) < 1e-6
