"""NumPy arrays of the other byte order: the numbers of native ones."""

import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec import ops
from keras_linrec.export import export_step
from keras_linrec.layers import LSSL
from keras_linrec.layers import Bidirectional
from keras_linrec.layers import OrthogonalRNNCell
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier


def swapped(value):
    """The same numbers in the other byte order."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(swapped, value))
    if isinstance(value, dict):
        return {key: swapped(part) for key, part in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    return value.astype(value.dtype.newbyteorder("S"))


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def assert_same(call, *args, **kwargs):
    expected = keras.tree.flatten(call(*args, **kwargs))
    got = keras.tree.flatten(call(*swapped(args), **swapped(kwargs)))
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(array(one), array(other))


STEPS = drawn(2, 5, 3)
TIMES = {
    "mask": np.arange(5) < np.array([[5], [3]], "int32"),
    "reset_mask": np.eye(2, 5, 2, "int16"),
    "time_deltas": np.ones((2, 5), "float32"),
}


def test_a_layer_takes_them():
    layer = LSSL(2, state_size=4, return_sequences=True, return_state=True)
    states = [drawn(2, *shape) for shape in states_of(layer)]
    assert_same(layer, STEPS, initial_state=states, **TIMES)
    assert_same(layer.step, STEPS[:, 0], states, time_deltas=np.ones(2, "f8"))
    assert_same(layer.call_with_states, STEPS, states, mask=TIMES["mask"])


def states_of(layer):
    layer.build(STEPS.shape)
    return layer.state_shapes


def test_recordings_of_integers_are_taken():
    assert_same(RotRNN(2, state_size=4, num_heads=2), np.int16(STEPS * 1000))


def test_cells_models_and_wrappers_take_them():
    assert_same(OrthogonalRNNCell(2), STEPS[:, 0], [drawn(2, 2)])
    assert_same(Bidirectional(RotRNN(2, state_size=4, num_heads=2)), STEPS)
    model = SequenceClassifier(2, 1, 4, unit="rotrnn", pooling="last")
    assert_same(model, STEPS, mask=TIMES["mask"])
    step = export_step(model)
    assert_same(step, [STEPS[:, 0], *map(array, step.initial_states(2))])


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("linear_scan", {"decay": drawn(3), "inputs": STEPS}),
        (
            "complex_linear_scan",
            {"decay": (drawn(3), drawn(3)), "inputs": (STEPS, STEPS)},
        ),
        ("causal_convolution", {"inputs": STEPS, "response": drawn(3, 1, 4)}),
        ("rotation_matrix", {"matrix": drawn(4, 4)}),
    ],
)
def test_operations_take_them(operation, arguments):
    assert_same(getattr(ops, operation), **arguments)
