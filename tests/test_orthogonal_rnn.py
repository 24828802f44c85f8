"""What only OrthogonalRNN promises."""

import keras
import numpy as np
import pytest
from autodiff import gradient
from autodiff import tensors
from autodiff import to_numpy
from units import array
from units import randomise
from units import sequences

from keras_linrec import activations
from keras_linrec.constraints import Sign
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.layers import OrthogonalRNNCell

FORMS = [
    {"units": 12, "reflections": 3},
    {"units": 5, "reflections": 5},
    {"units": 12, "reflections": 3, "field": "complex"},
    {"units": 8, "reflections": 4, "field": "complex"},
]


def defect(layer):
    w = array(layer.transition_matrix())
    return np.abs(w.T @ w - np.eye(len(w))).max()


def above_diagonal(layer):
    """What is above the diagonal of the reflectors, part by part."""
    parts = np.split(array(layer.reflectors), layer._matrices)
    return np.concatenate(
        [part[np.triu_indices_from(part, 1)] for part in parts]
    )


@pytest.mark.parametrize("form", FORMS[1:3])
def test_a_thousand_steps_of_training_keep_it_orthogonal(form):
    layer = OrthogonalRNN(**form)
    model = keras.Sequential([keras.Input((4, 2)), layer])
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01)
    model.compile(optimizer, "mse")
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((2000, 4, 2)).astype("float32")
    targets = generator.standard_normal((2000, form["units"]))
    before = array(layer.transition_matrix())
    model.fit(inputs, targets, batch_size=2, epochs=1, verbose=0)
    assert int(optimizer.iterations) == 1000
    assert defect(layer) < 1e-5
    assert (above_diagonal(layer) == 0).all()
    assert np.abs(array(layer.transition_matrix()) - before).max() > 0.1
    if layer.sign is not None:
        assert array(layer.sign) in (-1.0, 1.0)


def test_the_sign_turns_the_last_axis_and_has_two_values():
    layer = OrthogonalRNN(3, reflections=3)
    layer.build((None, None, 2))
    assert layer.reflectors.shape == (3, 2) and layer.sign.shape == ()
    w = array(layer.transition_matrix())
    assert isinstance(layer.sign.constraint, Sign)
    layer.sign.assign(layer.sign.constraint(np.float32(-0.2)))
    turned = array(layer.transition_matrix())
    assert np.allclose(turned, w * [1, 1, -1])
    assert np.linalg.det(w) * np.linalg.det(turned) < 0


def test_two_forms_of_the_transition_are_one():
    """The low-rank form of a step, and W once for all."""
    layer = OrthogonalRNN(16, reflections=4, return_sequences=True)
    inputs = sequences(9)
    layer.build(inputs.shape)
    randomise(layer)
    assert isinstance(layer.recurrence()["recurrent_kernel"], tuple)
    first = array(layer(inputs))
    w = array(layer.transition_matrix())
    kernel, bias = array(layer.kernel), array(layer.bias)
    state = np.zeros((2, 16))
    for step in range(9):
        a = state @ w.T + inputs[:, step] @ kernel + bias
        state = np.maximum(a / 10, a)
        assert np.abs(first[:, step] - state).max() < 1e-5


@pytest.mark.parametrize("units", [1, 2])
def test_the_smallest_unit_works(units):
    layer = OrthogonalRNN(units, reflections=units)
    assert layer(sequences(5)).shape == (2, units)
    assert defect(layer) < 1e-6


@pytest.mark.parametrize("field", ["real", "complex"])
def test_gradients_neither_vanish_nor_explode_over_2000_steps(field):
    """With an activation that permutes, every step keeps their norm."""
    layer = OrthogonalRNN(
        32, reflections=8, activation="oplu", field=field, use_bias=False
    )
    time = 2000
    inputs = 0.01 * sequences(time, batch=1, features=1)
    layer.build(inputs.shape)
    randomise(layer)

    def loss(arguments):
        state = layer(inputs, initial_state=arguments)
        return keras.ops.sum(state * direction)

    generator = np.random.default_rng(0)
    direction, state = generator.standard_normal((2, 1, 32)).astype("float32")
    direction = keras.ops.convert_to_tensor(direction)
    (slope,) = to_numpy(gradient(loss)(tensors([state])))
    ratio = np.linalg.norm(slope) / np.linalg.norm(array(direction))
    # W is orthogonal to the last digit of float32, 2000 times over.
    assert abs(ratio - 1) < 1e-3


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"reflections": 9}, "`reflections` .* dimension of the state, 8"),
        ({"reflections": 0}, "`reflections` should be a positive integer"),
        ({"reflections": 5, "field": "complex"}, "state, 4"),
        ({"field": "quaternion"}, "`field` .* Received: field=quaternion"),
        ({"units": 7, "activation": "oplu"}, "`units` should be even"),
        ({"units": 7, "field": "complex"}, "`units` should be even"),
        ({"units": None}, "`units` should be a positive integer"),
    ],
)
def test_a_wrong_argument_is_named(form, message):
    with pytest.raises(ValueError, match=message):
        OrthogonalRNN(**{"units": 8, "reflections": 2, **form})


@pytest.mark.parametrize(
    "form", [*FORMS, {"units": 6, "activation": "modrelu"}]
)
def test_its_cell_in_keras_rnn_is_the_layer(form):
    form = {"reflections": 2, **form}
    layer = OrthogonalRNN(return_sequences=True, **form)
    inputs = sequences(6)
    layer.build(inputs.shape)
    randomise(layer)
    cell = OrthogonalRNNCell(**form)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    rnn.build(inputs.shape)
    cell.set_weights(layer.get_weights())
    assert np.abs(array(rnn(inputs)) - array(layer(inputs))).max() < 1e-5


def test_cells_are_read_back_from_their_configs():
    for activation in ("oplu", "modrelu", activations.leaky_relu, "tanh"):
        cell = OrthogonalRNNCell(4, reflections=2, activation=activation)
        config = keras.layers.serialize(cell)
        other = keras.layers.deserialize(config)
        assert other.activation is cell.activation
        assert other.get_config() == cell.get_config()
