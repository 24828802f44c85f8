"""Layers of float64, and their gradients against the definitions'."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import built
from support.conformance_cases import definition
from support.conformance_cases import float64
from support.conformance_cases import unit_of
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("`float64`, gradients too")
# Of the differences that gradients are compared with.
STEP = 1e-5


@EVERY_LAYER_AND_CELL
def test_a_layer_of_float64_computes_in_float64(name):
    with float64():
        layer = built(name, dtype="float64", return_state=True)
        inputs = sequences(9).astype("float64")
        got = [array(part) for part in layer(inputs)]
        expected = definition(name, layer, inputs)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == "float64"
        assert relative_error(one, other) < 1e-12


@EVERY_LAYER_AND_CELL
def test_gradients_of_float64_equal_the_differences_of_the_definition(name):
    generator = np.random.default_rng(3)
    cotangent = generator.standard_normal((2, 9, 4))
    with float64():
        layer = built(name, dtype="float64")
        names = [weight.name for weight in layer.trainable_variables]
        inputs = sequences(9).astype("float64")
        point = [*(array(w) for w in layer.trainable_variables), inputs]

        weights = keras.ops.convert_to_tensor(cotangent)

        def loss(tensors):
            outputs, _ = layer.stateless_call(
                tensors[:-1], layer.non_trainable_variables, tensors[-1]
            )
            return keras.ops.sum(outputs * weights)

        tensors = [keras.ops.convert_to_tensor(part) for part in point]
        slopes = [array(part) for part in compiled(gradient(loss))(tensors)]
        fixed = {w.name: array(w) for w in layer.non_trainable_variables}

    def difference(index):
        """Along a random direction of one argument."""
        direction = generator.standard_normal(point[index].shape)
        if index < len(names) and names[index] == "transition_t":
            # The last entries of the outer bands belong to no weight.
            direction[[0, 2], -1] = 0
        # Of the fourth order: with two points, either what they leave out or
        # their rounding is more than the error allowed.
        slope = 0.0
        for steps, share in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = list(point)
            moved[index] = moved[index] + steps * STEP * direction
            weights = {**fixed, **dict(zip(names, moved))}
            outputs, *_ = unit_of(name).defined({}, weights, moved[-1])
            slope += share * np.sum(outputs * cotangent) / (12 * STEP)
        return direction, slope

    for index, slope in enumerate(slopes):
        assert slope.dtype == "float64"
        direction, expected = difference(index)
        size = np.sqrt(np.sum(slope**2) * np.sum(direction**2))
        error = abs(np.sum(slope * direction) - expected)
        assert error < 1e-8 * size
