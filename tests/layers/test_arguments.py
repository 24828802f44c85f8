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


# By class and argument, the values that it refuses.
REFUSED = {
    layers.CausalConvolution: {"kernel_size": [0, 1, 2.5]},
    layers.DeltaNet: {
        "num_heads": [0, None],
        "key_dim": [0],
        "reflections": [1.5],
        "gated": [1],
        "kernel_size": [1],
        "dt_max": [1e-4],
    },
    layers.LDStack: {
        "state_size": [0],
        "depth": [0],
        "slope": [0.0],
        "basis": ["modal"],
        "mimo": ["sum"],
        "projections": [0],
        "eigenvalues": ["real", ["unit"]],
        "initial_eigenvalues": ["zero", ["a"], {"a": 1}, np.zeros((1, 1, 2))],
    },
    layers.LRU: {
        "state_size": [0],
        "r_min": [0.0],
        "r_max": [1.0, 0.5],
        "theta_max": [0.0],
    },
    layers.LSSL: {
        "state_size": [0],
        "channels": [-1],
        "measure": ["legx", "chebyshev"],
        "dt_min": [0.0],
        "dt_max": [1e-4],
        "alpha": [1.5],
        "step_rescale": [0, -1.0, float("nan"), "2"],
    },
    layers.LinOSS: {
        "state_size": [0],
        "discretization": ["zoh"],
        "damping": [1],
        "r_min": [0.0],
        "r_max": [1.1, 0.5],
        "theta_max": [4.0],
        "dt_min": [0.0],
        "dt_max": [0.1],
    },
    layers.LipschitzRNN: {
        "beta": [1.5, (0.5, 0.5, 0.5)],
        "gamma": [-0.1],
        "step_size": [0.0],
        "solver": ["heun"],
        "alpha": ["one"],
    },
    layers.AntisymmetricRNN: {"gamma": [(0.1, 0.2)]},
    layers.Mamba2: {"state_size": [0], "expand": [0], "kernel_size": [1]},
    layers.MinGRU: {"units": [0], "candidate": ["tanh"], "use_bias": [1]},
    layers.MinLSTM: {"units": [0], "candidate": ["tanh"], "use_bias": [1]},
    layers.OrthogonalRNN: {
        "units": [None],
        "reflections": [9, 0],
        "field": ["quaternion"],
    },
    layers.RGLRU: {"num_heads": [0], "r_min": [0.0], "r_max": [1.0, 0.5]},
    layers.RotRNN: {
        "units": [0, 2.5],
        "state_size": [1],
        "num_heads": [3],
        "gamma_min": [0.0],
        "gamma_max": [1.0, 0.4],
        "theta_max": [-1],
        "dropout": [1.0],
    },
    layers.S4D: {
        "state_size": [0, 5],
        "channels": [0],
        "initial_eigenvalues": ["fout"],
        "dt_min": [0.0],
        "dt_max": [1e-4],
        "use_bias": [1],
        "trainable_transition": [2],
    },
    layers.S5: {
        "state_size": [0],
        "num_blocks": [0],
        "discretization": ["euler"],
        "eigenvalues": ["unit"],
        "dt_min": [0.0],
        "dt_max": [1e-4],
        "step_rescale": [-1],
    },
}


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (layer, name, value)
        for layer, arguments in REFUSED.items()
        for name, values in arguments.items()
        for value in values
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_a_wrong_argument_is_named_at_construction(layer, name, value):
    with pytest.raises(ValueError) as refusal:
        layer(**{"units": 8, name: value})
    expected, received = str(refusal.value).split("Received: ")
    assert f"`{name}`" in expected
    assert f"{name}={value}" in received


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (layers.DeltaNet, {"key_heads": 3}, "key_heads=3, num_heads=4"),
        (
            layers.LDStack,
            {"initial_eigenvalues": "polynomial", "eigenvalues": "unit"},
            "initial_eigenvalues=polynomial, eigenvalues=unit",
        ),
        (layers.LDStack, {"initial_eigenvalues": [1j]}, "conjugate pairs"),
        (layers.LSSL, {"stable_transition": True, "alpha": 0.4}, "least 0.5"),
        (
            layers.LinOSS,
            {"damping": True, "discretization": "im"},
            "`damping` should be False .* discretization=im",
        ),
        (layers.LipschitzRNN, {"units": 3, "activation": "oplu"}, "be even"),
        (layers.AntisymmetricRNN, {"beta": 0.5}, "`LipschitzRNN` has"),
        (layers.Mamba2, {"num_groups": 3, "num_heads": 4}, "3, num_heads=4"),
        (layers.OrthogonalRNN, {"reflections": 5, "field": "complex"}, "te, 4"),
        (layers.OrthogonalRNN, {"units": 7, "activation": "oplu"}, "be even"),
        (layers.OrthogonalRNN, {"units": 7, "field": "complex"}, "be even"),
        (layers.RGLRU, {"num_heads": 3}, "divide .* num_heads=3, units=8"),
        (layers.RotRNN, {"state_size": 10, "num_heads": 10}, "at least 2 sta"),
        (
            layers.RotRNN,
            {"bidirectional": True, "stateful": True},
            "bidirectional=True, stateful=True",
        ),
        (
            layers.RotRNN,
            {"bidirectional": True, "return_sequences": False},
            "bidirectional=True, return_sequences=False",
        ),
        (layers.S5, {"num_blocks": 3, "state_size": 4}, "3, state_size=4"),
        (layers.S5, {"bidirectional": True, "stateful": True}, "stateful=True"),
    ],
)
def test_arguments_that_do_not_go_together_are_named(layer, arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(**{"units": 8, **arguments})


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, unit in UNITS.items()
        if "activation" in inspect.signature(unit.layer).parameters
        and name != "orthogonal_rnn"
    ],
)
def test_an_activation_with_a_bias_is_refused(name):
    message = "for which there is `OrthogonalRNN`. Received: activation=modrelu"
    with pytest.raises(ValueError, match=message):
        UNITS[name](activation="modrelu")


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
