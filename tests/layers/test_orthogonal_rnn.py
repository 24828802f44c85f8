"""What only OrthogonalRNN promises."""

import keras
import numpy as np
import pytest
from support.autodiff import gradient
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec import activations
from keras_linrec import export_step
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


def lengths(layer):
    return np.linalg.norm(array(layer.reflectors), axis=0)


@pytest.mark.parametrize("field", ["real", "complex"])
def test_reflectors_begin_with_length_one_whatever_the_initializer(field):
    layer = OrthogonalRNN(8, 3, field=field, reflector_initializer="ones")
    layer.build((None, None, 2))
    assert np.abs(lengths(layer) - 1).max() < 1e-6
    assert (above_diagonal(layer) == 0).all()


@pytest.mark.parametrize(
    ("units", "field", "reflections"),
    [(1, "real", 1), (8, "real", 8), (40, "real", 16), (8, "complex", 4)],
)
def test_reflections_default_to_sixteen_or_the_dimension(
    units, field, reflections
):
    for make in (OrthogonalRNN, OrthogonalRNNCell):
        assert make(units, field=field).reflections == reflections


@pytest.mark.parametrize("form", FORMS[1:3])
@pytest.mark.rest
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
    assert np.abs(lengths(layer) - 1).max() < 1e-6
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


def test_cells_are_read_back_from_their_configs():
    for activation in ("oplu", "modrelu", activations.leaky_relu, "tanh"):
        cell = OrthogonalRNNCell(4, reflections=2, activation=activation)
        config = keras.layers.serialize(cell)
        other = keras.layers.deserialize(config)
        assert other.activation is cell.activation
        assert other.get_config() == cell.get_config()


# The initial state, trained.


def with_initial_state(**arguments):
    layer = OrthogonalRNN(
        6, 3, train_initial_state=True, return_sequences=True, **arguments
    )
    layer.build((2, None, 3))
    return randomise(layer)


def test_a_trained_initial_state_is_where_sequences_begin():
    layer = with_initial_state()
    inputs = sequences(5)
    (state,) = layer.get_initial_state(2)
    assert (array(state) == array(layer.initial_state)).all()
    expected = array(layer(inputs, initial_state=[np.array(array(state))]))
    assert np.abs(array(layer(inputs)) - expected).max() < 1e-6
    assert (
        np.abs(array(layer(inputs, initial_state=0 * state)) - expected).max()
        > 1e-3
    )
    outputs, states = [], [state]
    for step in range(5):
        output, states = layer.step(inputs[:, step], states)
        outputs.append(array(output))
    assert np.abs(np.stack(outputs, 1) - expected).max() < 1e-6


@pytest.mark.parametrize("reflections", [2, 6])
def test_a_trained_initial_state_is_that_after_a_reset(reflections):
    """In both forms of W, with and without a mask."""
    layer = OrthogonalRNN(
        6,
        reflections,
        train_initial_state=True,
        return_sequences=True,
        return_state=True,
    )
    inputs = sequences(7)
    layer.build(inputs.shape)
    randomise(layer)
    resets = np.zeros((2, 7), bool)
    resets[:, 4] = True
    whole, _ = layer(inputs, reset_mask=resets)
    parts = [layer(inputs[:, :4])[0], layer(inputs[:, 4:])[0]]
    expected = np.concatenate([array(part) for part in parts], axis=1)
    assert np.abs(array(whole) - expected).max() < 1e-5
    mask = np.ones((2, 7), bool)
    mask[:, 4:] = False
    masked, state = layer(inputs, reset_mask=resets, mask=mask)
    assert np.abs(array(masked)[:, :4] - expected[:, :4]).max() < 1e-5
    assert np.abs(array(state) - array(layer.initial_state)).max() < 1e-6


def test_a_stateful_layer_begins_at_its_trained_state():
    layer = with_initial_state(stateful=True)
    other = with_initial_state()
    other.set_weights(layer.get_weights())
    inputs = sequences(6)
    whole = array(other(inputs))
    for _ in range(2):
        first, second = array(layer(inputs[:, :3])), array(layer(inputs[:, 3:]))
        assert np.abs(np.concatenate([first, second], 1) - whole).max() < 1e-6
        layer.reset_state()
    # It follows a change of the weight, where no batch came before.
    for one in (layer, other):
        one.initial_state.assign(one.initial_state + 1.0)
    expected = array(other(inputs))
    assert np.abs(expected - whole).max() > 1e-3
    assert np.abs(array(layer(inputs)) - expected).max() < 1e-6
    layer.reset_state([np.zeros((2, 6), "float32")])
    zeros = array(other(inputs, initial_state=np.zeros((2, 6), "float32")))
    assert np.abs(array(layer(inputs)) - zeros).max() < 1e-6


@pytest.mark.parametrize("stateful", [False, True])
def test_the_initial_state_learns(stateful):
    layer = with_initial_state(stateful=stateful)
    model = keras.Sequential([keras.Input((4, 3), batch_size=2), layer])
    model.compile("sgd", "mse")
    before = array(layer.initial_state)
    inputs = sequences(4)
    model.fit(inputs, np.ones((2, 4, 6)), batch_size=2, verbose=0)
    assert np.abs(array(layer.initial_state) - before).min() > 0


def test_an_initial_state_is_asked_for_once_there_is_one():
    layer = OrthogonalRNN(4, 2, train_initial_state=True)
    with pytest.raises(ValueError, match="trains its initial state"):
        layer.get_initial_state(2)


def test_a_step_model_needs_an_initial_state_of_zeros():
    model = keras.Sequential([keras.Input((None, 3)), with_initial_state()])
    with pytest.raises(ValueError, match="its states do not start from zero"):
        export_step(model)
