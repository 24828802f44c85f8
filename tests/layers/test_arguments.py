"""What units take, and how they refuse what they do not."""

import inspect

import keras
import numpy as np
import pytest
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec import layers
from keras_linrec.layers.base.sequence_layer import SequenceLayer

pytestmark = pytest.mark.weekly("jax", "tensorflow")

CELLS = [
    layers.AntisymmetricRNNCell,
    layers.LipschitzRNNCell,
    layers.OrthogonalRNNCell,
]
# Arguments of Keras' recurrent layers now and in Keras 2.
OF_KERAS = {
    "implementation",
    "time_major",
    *(
        name
        for layer in (keras.layers.LSTM, keras.layers.GRU)
        for name in inspect.signature(layer).parameters
        if name not in ("args", "kwargs", "units")
    ),
}
OF_KERAS_CELLS = {
    name
    for cell in (keras.layers.LSTMCell, keras.layers.GRUCell)
    for name in inspect.signature(cell).parameters
    if name not in ("args", "kwargs", "units")
}
OF_EVERY_LAYER = {"name", "dtype", "trainable", "activity_regularizer"}
OF_EVERY_UNIT = {*inspect.signature(SequenceLayer).parameters, *OF_EVERY_LAYER}


def refuses(cls, names, shared):
    # Arguments that a class passes to its base are among the base's.
    taken = {*shared}.union(
        *(inspect.signature(base.__init__).parameters for base in cls.__mro__)
    )
    for name in sorted(names - taken):
        message = rf"`{cls.__name__}` takes no argument `{name}`: .*\. Received"
        with pytest.raises(ValueError, match=message):
            cls(4, **{name: None})


@pytest.mark.parametrize("name", UNITS)
def test_what_only_keras_layers_take_is_refused_with_advice(name):
    refuses(UNITS[name].layer, OF_KERAS, OF_EVERY_UNIT)


@pytest.mark.parametrize("cell", CELLS)
def test_what_only_keras_cells_take_is_refused_with_advice(cell):
    refuses(cell, OF_KERAS_CELLS, OF_EVERY_LAYER)


@pytest.mark.parametrize("name", UNITS)
def test_an_unknown_argument_is_refused_by_the_class_name(name):
    cls = UNITS[name].layer
    with pytest.raises(ValueError, match=f"{cls.__name__}: .*no_such_name"):
        cls(4, no_such_name=1)


@pytest.mark.parametrize("name", UNITS)
def test_an_unknown_call_argument_is_refused_by_the_layers_name(name):
    layer = UNITS[name](name="reader")
    inputs = sequences(5)
    message = (
        rf"Layer 'reader' \({type(layer).__name__}\) takes no call argument "
        "`timescales`. It takes: `sequences`, `initial_state`, `mask`"
    )
    symbolic = keras.Input((5, 3))
    for given in (inputs, symbolic):
        with pytest.raises(TypeError, match=message) as refusal:
            layer(given, timescales=np.ones((2, 5), "float32"))
        assert "sequences_mask" not in str(refusal.value)


@pytest.mark.parametrize("name", ["orthogonal_rnn", "rotrnn"])
def test_a_unit_without_time_deltas_refuses_them_however_it_is_called(name):
    layer = UNITS[name](name="reader")
    inputs = sequences(5)
    layer(inputs)
    states = layer.get_initial_state(2)
    gaps = np.ones((2, 5), "float32")
    for call in (
        lambda: layer(inputs, time_deltas=gaps),
        lambda: layer.call_with_states(inputs, states, time_deltas=gaps),
        lambda: layer.step(inputs[:, 0], states, time_deltas=gaps[:, 0]),
    ):
        with pytest.raises(TypeError, match="'reader' .* `time_deltas`"):
            call()


def test_a_step_takes_no_argument_of_whole_sequences():
    layer = UNITS["lssl"]()
    inputs = sequences(5)
    layer(inputs)
    states = layer.get_initial_state(2)
    with pytest.raises(
        TypeError, match="`reset_mask`. It takes: `time_deltas`, `step_rescale`"
    ):
        layer.step(inputs[:, 0], states, reset_mask=np.ones(2, bool))


def test_masks_reach_a_call_of_several_tensors_within_models_and_wrappers():
    """Keras passes `mask`, `sequences_mask` and `training` on its own."""
    inputs = keras.Input((5, 3))
    state = keras.Input((4,))
    unit = UNITS["lipschitz_rnn"](dropout=0.5)
    masked = keras.layers.Masking()(inputs)
    outputs = unit(masked, initial_state=state)
    wrapped = layers.Bidirectional(UNITS["lipschitz_rnn"]())(masked)
    model = keras.Model([inputs, state], [outputs, wrapped])
    values = sequences(5)
    values[:, 3:] = 0
    start = np.ones((2, 4), "float32")
    got, both = model([values, start])
    expected = unit(values[:, :3], initial_state=start)
    assert np.abs(array(got)[:, :3] - array(expected)).max() < 1e-6
    assert (array(got)[:, 3:] == array(got)[:, 2:3]).all()
    # `Bidirectional` sets `zero_output_for_mask`.
    assert (array(both)[:, 3:] == 0).all() and (array(both)[:, :3] != 0).all()
    different = model([values, start], training=True)[0]
    assert np.abs(array(different) - array(got)).max() > 1e-3


@pytest.mark.parametrize("features", [1, 3, 7])
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_trains_with_its_defaults(name, features):
    cls = UNITS[name].layer
    for units in (1, 4, 8):
        model = keras.Sequential([keras.Input((6, features)), cls(units)])
        model.compile("sgd", "mse")
        inputs = sequences(6, features=features)
        targets = np.ones(model.output_shape[1:], "float32")[None].repeat(2, 0)
        before = model.get_weights()
        model.train_on_batch(inputs, targets)
        moved = [
            np.abs(new - old).max()
            for new, old in zip(model.get_weights(), before)
        ]
        assert np.isfinite(moved).all() and max(moved) > 0
