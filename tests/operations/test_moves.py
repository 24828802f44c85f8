"""Moves of unmasked steps, by whichever kernel, against their matrices."""

import keras
import numpy as np
import pytest
from definitions.moves_of_steps import matrices
from support.autodiff import BACKEND
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import each_kernel

from keras_linrec.ops.masks.moves import to_front
from keras_linrec.ops.masks.moves import to_places

RANDOM = np.random.default_rng(0)
MASKS = {
    "one_step": np.array([[True], [False]]),
    "right": np.arange(9) < np.array([[4], [9], [0]]),
    "left": np.arange(9) >= np.array([[3], [0], [8]]),
    "holes": RANDOM.random((5, 63)) < 0.6,
    "all": np.ones((2, 7), bool),
}
EVERY_MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
MOVES = {
    "to_front": (to_front, False, False),
    "to_places": (to_places, True, False),
    "repeats": (lambda x, mask: to_places(x, mask, repeats=True), True, True),
}
EVERY_MOVE = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)


kernel = each_kernel("native", "associative")


@EVERY_MOVE
@EVERY_MASK
def test_outputs_and_gradients_equal_their_matrices(mask, move, kernel):
    function, *form = move
    inputs, weights = RANDOM.standard_normal((2, *mask.shape, 3))

    def run(given):
        return [function(given[0], keras.ops.convert_to_tensor(mask))]

    moves = matrices(mask, *form)
    (got,) = to_numpy(compiled(run)(tensors([inputs])))
    assert relative_error(got, moves @ inputs) < 1e-6
    (got,) = backend_gradients(run, [inputs], [weights])
    assert relative_error(got, np.swapaxes(moves, 1, 2) @ weights) < 1e-6


@EVERY_MOVE
def test_second_derivatives(move, kernel):
    function, *form = move
    mask = MASKS["right"]
    inputs, directions = RANDOM.standard_normal((2, *mask.shape, 2))
    (along,) = tensors([directions])

    def mixed(given):
        def squared(inner):
            moved = function(inner[0], keras.ops.convert_to_tensor(mask))
            return keras.ops.sum(keras.ops.square(moved))

        return keras.ops.sum(gradient(squared)(given)[0] * along)

    (got,) = to_numpy(compiled(gradient(mixed))(tensors([inputs])))
    moves = matrices(mask, *form)
    expected = 2 * np.swapaxes(moves, 1, 2) @ (moves @ directions)
    assert relative_error(got, expected) < 1e-6


def test_what_masked_steps_hold_reaches_nothing(kernel):
    mask = MASKS["holes"]
    inputs = RANDOM.standard_normal((*mask.shape, 2))
    inputs[~mask] = np.nan

    def squared(given):
        moved = to_front(given[0], keras.ops.convert_to_tensor(mask))
        return keras.ops.sum(keras.ops.square(moved))

    (got,) = to_numpy(gradient(squared)(tensors([inputs])))
    expected = np.where(mask[:, :, None], 2 * inputs, 0.0)
    assert relative_error(got, expected) < 1e-6


def test_half_precision_and_two_axes_are_moved_too(kernel):
    mask = MASKS["holes"]
    inputs = RANDOM.integers(0, 100, mask.shape).astype("float32")
    given = keras.ops.cast(inputs, "bfloat16")
    got = to_front(given, keras.ops.convert_to_tensor(mask))
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    expected = matrices(mask, False, False) @ inputs[:, :, None]
    got = keras.ops.convert_to_numpy(keras.ops.cast(got, "float32"))
    assert np.array_equal(got, expected[:, :, 0])


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it has no such vmap")
@EVERY_MOVE
def test_vmap_equals_a_loop(move, kernel):
    if BACKEND == "jax":
        from jax import vmap
    else:
        from torch import vmap
    function, *form = move
    masks = RANDOM.random((3, 2, 9)) < 0.6
    inputs = RANDOM.standard_normal((3, 2, 9, 4))
    given, mask = tensors([inputs])[0], keras.ops.convert_to_tensor(masks)
    got = to_numpy([vmap(function)(given, mask)])[0]
    expected = [matrices(m, *form) @ rows for m, rows in zip(masks, inputs)]
    assert relative_error(got, expected) < 1e-6
