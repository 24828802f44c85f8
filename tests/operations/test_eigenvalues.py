"""The parameterisations of eigenvalues, and their initial values."""

import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec.ops.algebra.eigenvalues import HINGES
from keras_linrec.ops.algebra.eigenvalues import INITIAL
from keras_linrec.ops.algebra.eigenvalues import PARAMETERIZATIONS
from keras_linrec.ops.algebra.eigenvalues import as_complex
from keras_linrec.ops.algebra.eigenvalues import in_pairs
from keras_linrec.ops.algebra.eigenvalues import initial_eigenvalues
from keras_linrec.ops.algebra.eigenvalues import parameters_of
from keras_linrec.ops.algebra.eigenvalues import separation
from keras_linrec.ops.algebra.eigenvalues import spectrum

EVERY_ONE = pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)


def eigenvalues_of(parameterization, parameters, size):
    parameters = {
        name: np.asarray(values, "float32")
        for name, values in parameters.items()
    }
    found = spectrum(parameterization, parameters, size)
    return as_complex(found, size)


def in_order(eigenvalues):
    return np.sort_complex(np.round(eigenvalues, 5))


@EVERY_ONE
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_parameters_give_their_eigenvalues_back(parameterization, size):
    kind = "uniform" if parameterization == "unit" else "polynomial"
    expected = initial_eigenvalues(kind, parameterization, 3, size, seed=1)
    parameters = parameters_of(parameterization, expected)
    got = eigenvalues_of(parameterization, parameters, size)
    assert got.shape == (3, size)
    for one, other in zip(got, expected):
        # Compare as sets: each eigenvalue has a counterpart.
        distances = np.abs(one[:, None] - other)
        assert distances.min(axis=0).max() < 1e-6
        assert distances.min(axis=1).max() < 1e-6


@pytest.mark.parametrize(
    ("parameterization", "eigenvalues"),
    [
        ("hinge", [0.5, -0.25, 0.1 + 0.2j, 0.1 - 0.2j, 0.9]),
        ("hinge", [0.5, 0.5]),
        ("log_polar_hinge", [0.5, 0.25, -0.3, -0.7, 0.1j, -0.1j]),
        ("log_polar_hinge", [-0.5, -0.5, 1e-12, 1e-10]),
    ],
)
def test_a_hinge_holds_two_real_numbers(parameterization, eigenvalues):
    parameters = parameters_of(parameterization, [eigenvalues])
    got = eigenvalues_of(parameterization, parameters, len(eigenvalues))
    difference = np.sort_complex(got[0]) - np.sort_complex(eigenvalues)
    assert np.abs(difference).max() < 1e-6 * np.abs(eigenvalues).max()
    # Logarithms resolve small magnitudes.
    smallest = np.abs(got[0]).min() / np.abs(eigenvalues).min()
    assert abs(smallest - 1) < 1e-5


@pytest.mark.parametrize(
    ("parameterization", "name", "corner"),
    [
        ("hinge", "eigenvalue_split", 0.0),
        ("log_polar_hinge", "log_split", 0.0),
        ("log_polar_hinge", "log_split", -np.pi),
    ],
)
def test_a_pair_turns_from_one_kind_into_the_other(
    parameterization, name, corner
):
    other = {"hinge": "eigenvalue_mean"}.get(parameterization, "log_magnitude")
    kinds, found = [], []
    for split in (corner - 1e-3, corner + 1e-3):
        parameters = {other: [[-0.4]], name: [[split]]}
        got = eigenvalues_of(parameterization, parameters, 2)[0]
        found.append(np.sort_complex(got))
        kinds.append(bool(np.isreal(got).all()))
    assert sorted(kinds) == [False, True]
    assert np.abs(found[0] - found[1]).max() < 3e-3


@EVERY_ONE
@pytest.mark.parametrize("size", [7, 128])
def test_polynomial_roots_start_on_the_unit_circle_or_inside(
    parameterization, size
):
    if parameterization == "unit":
        with pytest.raises(ValueError, match="Roots .* Received: initial_"):
            initial_eigenvalues("polynomial", "unit", 1, size)
        return
    for eigenvalues in initial_eigenvalues(
        "polynomial", parameterization, 3, size, seed=2
    ):
        assert np.abs(eigenvalues).max() <= 1 + 1e-12
        assert separation(eigenvalues) > 0
        assert np.abs(np.poly(in_order(eigenvalues)).imag).max() < 1e-3
        if size == 128:
            assert np.median(np.abs(eigenvalues)) > 0.9
    if parameterization not in HINGES:
        return
    many = initial_eigenvalues("polynomial", parameterization, 30, 8, seed=2)
    assert np.isreal(many).sum() > 20


def test_low_discrepancy_angles_are_well_separated():
    (drawn,) = initial_eigenvalues("uniform", "unit", 1, 400, seed=3)
    (spread,) = initial_eigenvalues("low_discrepancy", "unit", 1, 400)
    assert np.allclose(np.abs(spread), 1)
    # The first angles are 1/2, 1/4, 3/4, 1/8, ... of pi.
    assert np.allclose(np.angle(spread[:4]) / np.pi, [0.5, 0.25, 0.75, 0.125])
    assert separation(spread) > 0.8 * np.pi / 256 > 10 * separation(drawn)


def test_chebyshev_nodes_are_real_for_a_hinge_otherwise_on_the_circle():
    (nodes,) = initial_eigenvalues("chebyshev", "hinge", 1, 6)
    polynomial = np.polynomial.chebyshev.Chebyshev.basis(6)
    assert np.abs(polynomial(nodes.real)).max() < 1e-12
    (points,) = initial_eigenvalues("chebyshev", "unit", 1, 6)
    assert np.allclose(np.abs(points), 1)
    gaps = np.diff(np.sort(np.angle(points)))
    assert np.allclose(gaps, np.pi / 3)


@pytest.mark.parametrize("kind", INITIAL)
def test_a_seed_gives_the_same_eigenvalues_again(kind):
    one, again, other = (
        initial_eigenvalues(kind, "hinge", 2, 6, seed=seed)
        for seed in (1, 1, 2)
    )
    assert (one == again).all()
    is_random = kind in ("polynomial", "uniform")
    assert (one != other).any() == is_random
    assert (one[0] != one[1]).any() == is_random


@pytest.mark.parametrize(
    ("parameterization", "eigenvalues", "message"),
    [
        ("standard", [[0.5, 0.25]], "'standard' has conjugate pairs only"),
        ("standard", [[0.5j, 0.5j]], "come in conjugate pairs"),
        ("standard", [[np.nan, 0.5]], "should be finite"),
        ("unit", [[0.5j, -0.5j]], "have magnitude 1"),
        ("unit", [[-1.0]], "the unpaired one should be 1"),
        ("log_polar_hinge", [[0.5, -0.5]], "should have the same sign"),
        ("log_polar", [[-0.5]], "should be positive"),
    ],
)
def test_unsuitable_eigenvalues_are_refused(
    parameterization, eigenvalues, message
):
    with pytest.raises(ValueError, match=message):
        parameters_of(parameterization, eigenvalues)


@EVERY_ONE
def test_eigenvalues_have_the_dtype_of_the_parameters(parameterization):
    kind = "uniform" if parameterization == "unit" else "polynomial"
    drawn = initial_eigenvalues(kind, parameterization, 1, 5, seed=1)
    # JAX has float64 only if it is enabled.
    dtype = "float32" if keras.backend.backend() == "jax" else "float64"
    parameters = {
        name: keras.ops.convert_to_tensor(values, dtype)
        for name, values in parameters_of(parameterization, drawn).items()
    }
    found = spectrum(parameterization, parameters, 5)
    for part in found:
        if part is not None:
            assert keras.backend.standardize_dtype(part.dtype) == dtype


def test_rounding_makes_no_pair_and_breaks_none():
    near = [
        0.5 + 0.1j,
        0.5 + 0.2j,
        0.5 + 1e-13 - 0.1j,
        0.5 - 0.2j,
        0.9 + 1e-17j,
    ]
    parameters = parameters_of("standard", [near])
    assert np.allclose(parameters["eigenvalue_imag"], [[0.1, 0.2]])
    assert np.allclose(parameters["eigenvalue_real"], [[0.5, 0.5, 0.9]])


def test_a_thousand_eigenvalues_are_drawn_in_the_end():
    for kind in ("chebyshev", "uniform"):
        (many,) = initial_eigenvalues(kind, "hinge", 1, 1000, seed=0)
        assert many.shape == (1000,)


def test_pairs_are_exactly_conjugate():
    parameters = {"log_magnitude": [[-0.1, -0.2]], "angle": [[1.0, 3.0]]}
    got = eigenvalues_of("log_polar", parameters, 4)[0]
    assert (got[::2] == got[1::2].conj()).all()
    assert array(got).dtype == "complex128"


def test_small_eigenvalues_find_their_partners():
    upper = 1e-10 * np.array([0.3, 0.9, 2.0]) * np.exp([0.3j, 0.9j, 2.0j])
    eigenvalues = np.concatenate([upper, upper[::-1].conj()])
    first, second, _ = in_pairs(eigenvalues)
    assert (first == second.conj()).all()
    assert sorted(np.abs(first)) == sorted(np.abs(upper))
    with pytest.raises(ValueError, match="conjugate pairs"):
        in_pairs(np.array([1e-9 + 1e-9j, 5e-9 - 3e-9j]))
