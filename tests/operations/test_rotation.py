"""The map to rotation matrices, against SciPy."""

import keras
import numpy as np
import pytest
from definitions.rotrnn import rotation as exact_rotation
from scipy.linalg import expm
from support.autodiff import backend_gradients
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.conformance_cases import float64

from keras_linrec.ops import rotation
from keras_linrec.ops import rotation_matrix


def define(arguments):
    return [np.stack([expm(m - m.T) for m in arguments[0]])]


def free_matrices(size, scale, count=3):
    generator = np.random.default_rng(size)
    matrices = scale * generator.standard_normal((count, size, size))
    return matrices.astype("float32").astype("float64")


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 5.0])
@pytest.mark.parametrize("size", [2, 3, 8, 33, 128])
def test_rotation_matrix_is_the_exponential_of_the_skew_part(size, scale):
    matrices = free_matrices(size, scale)
    got = keras.ops.convert_to_numpy(
        rotation_matrix(matrices.astype("float32"))
    )
    # The rounding of angles, which grow with the matrix, is unavoidable.
    largest = np.abs(matrices).sum(axis=-1).max()
    assert np.abs(got - define([matrices])[0]).max() < 1e-6 + 1e-7 * largest


@pytest.mark.parametrize("norm", [1e-3, 1.99, 2.01, 7.9])
@pytest.mark.parametrize("size", [2, 5, 33])
def test_a_rotation_in_float64_is_exact_to_float64(size, norm):
    (matrix,) = free_matrices(size, 1.0, count=1)
    matrix *= norm / np.abs(matrix - matrix.T).sum(axis=-1).max()
    with float64():
        got = keras.ops.convert_to_numpy(
            rotation_matrix(keras.ops.convert_to_tensor(matrix))
        )
    assert np.abs(got - exact_rotation(matrix - matrix.T)).max() < 5e-15


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("size", [2, 33, 128])
def test_rotation_matrix_is_orthogonal_to_the_last_digit(size, scale):
    got = keras.ops.convert_to_numpy(
        rotation_matrix(free_matrices(size, scale).astype("float32"))
    ).astype("float64")
    assert np.abs(np.swapaxes(got, 1, 2) @ got - np.eye(size)).max() < 1e-6
    assert np.abs(np.linalg.det(got) - 1).max() < 1e-4


def test_each_matrix_is_scaled_by_itself():
    small, large = free_matrices(4, 1e-2), free_matrices(4, 20.0)
    mixed = np.concatenate([small, large]).astype("float32")
    together = keras.ops.convert_to_numpy(rotation_matrix(mixed))
    alone = keras.ops.convert_to_numpy(rotation_matrix(mixed[:3]))
    assert np.array_equal(together[:3], alone)


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("size", [2, 5])
def test_gradient_of_the_rotation_matrix(size, scale):
    matrices = free_matrices(size, scale, count=2)
    weights = [np.random.default_rng(0).standard_normal(matrices.shape)]
    got = backend_gradients(
        lambda arguments: [rotation_matrix(arguments[0])], [matrices], weights
    )
    expected = numerical_gradients(define, [matrices], weights)
    assert relative_error(got[0], expected[0]) < 1e-4


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, 0)])
def test_no_numbers_give_no_rotations(shape):
    assert tuple(rotation_matrix(np.ones(shape, "float32")).shape) == shape


def test_beyond_float32_the_rotation_is_not_a_wrong_number():
    huge = np.array([[0.0, 1e5], [0.0, 0.0]], "float32")
    assert np.isnan(keras.ops.convert_to_numpy(rotation_matrix(huge))).all()


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_pairs_come_back_from_complex_numbers(size):
    vectors = np.arange(3.0 * size, dtype="float32").reshape(3, size)
    numbers = rotation.complex_from_pairs(keras.ops.convert_to_tensor(vectors))
    assert numbers[0].shape[-1] == -(-size // 2)
    back = rotation.pairs_from_complex(numbers, size)
    assert np.array_equal(keras.ops.convert_to_numpy(back), vectors)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="PyTorch's recorder"
)
def test_a_recorded_program_rotates_by_any_angle():
    # An eager call squares as often as its own matrix needs.
    from torch.fx.experimental.proxy_tensor import make_fx

    matrix = keras.ops.convert_to_tensor(
        free_matrices(4, 1.0).astype("float32")
    )
    program = make_fx(rotation_matrix)(0.001 * matrix)
    difference = program(20.0 * matrix) - rotation_matrix(20.0 * matrix)
    assert float(keras.ops.max(keras.ops.abs(difference))) < 1e-6


def test_a_rotation_in_bfloat16_is_near_that_in_float32():
    matrix = free_matrices(3, 0.5).astype("float32")
    rough = rotation_matrix(keras.ops.cast(matrix, "bfloat16"))
    rough = keras.ops.convert_to_numpy(keras.ops.cast(rough, "float32"))
    exact = keras.ops.convert_to_numpy(rotation_matrix(matrix))
    np.testing.assert_allclose(rough, exact, atol=0.05)
