"""Layers of float64, and their gradients against the definitions'."""

import keras
import numpy as np
import pytest
from autodiff import compiled
from autodiff import gradient
from autodiff import relative_error
from units import DEFINITIONS
from units import array
from units import sequences

from conformance.cases import EVERY_LAYER_AND_CELL
from conformance.cases import built
from conformance.cases import definition
from conformance.cases import float64

pytestmark = pytest.mark.capability("`float64`, gradients too")
# TensorFlow's GELU has a float32 constant.
LINEAR = {"lssl": ({"activation": "linear"}, {"activation": np.asarray})}
# Keras computes cosines in float32 on JAX.
TURNING = ("ldstack", "linear_dynamical_system", "rotrnn")


def tolerance(name, exact, rounded):
    jax = keras.backend.backend() == "jax"
    return rounded if jax and name in TURNING else exact


@EVERY_LAYER_AND_CELL
def test_a_layer_of_float64_computes_in_float64(name):
    form, defined = LINEAR.get(name, ({}, {}))
    with float64():
        layer = built(name, dtype="float64", return_state=True, **form)
        inputs = sequences(9).astype("float64")
        got = [array(part) for part in layer(inputs)]
        expected = definition(name, layer, inputs, **defined)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == "float64"
        assert relative_error(one, other) < 1e-12


@EVERY_LAYER_AND_CELL
def test_gradients_of_float64_equal_the_differences_of_the_definition(name):
    form, defined = LINEAR.get(name, ({}, {}))
    generator = np.random.default_rng(3)
    cotangent = generator.standard_normal((2, 9, 4))
    with float64():
        layer = built(name, dtype="float64", **form)
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
        values = []
        for sign in (1, -1):
            moved = list(point)
            moved[index] = moved[index] + sign * 1e-5 * direction
            weights = {**fixed, **dict(zip(names, moved))}
            define = DEFINITIONS[name.removesuffix("_cell")]
            outputs, *_ = define(weights, moved[-1], **defined)
            values.append(np.sum(outputs * cotangent))
        return direction, (values[0] - values[1]) / 2e-5

    for index, slope in enumerate(slopes):
        assert slope.dtype == "float64"
        direction, expected = difference(index)
        size = np.sqrt(np.sum(slope**2) * np.sum(direction**2))
        error = abs(np.sum(slope * direction) - expected)
        assert error < 1e-8 * size
