"""Attributes that are set after construction."""

import copy
import inspect
import pickle

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.language_models import make_backbone
from support.model_cases import make_model
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec import layers
from keras_linrec import models
from keras_linrec import nlp
from keras_linrec.layers.base.set_later import may_be_set
from keras_linrec.nlp.gated_feedforward import GatedFeedforward

SHAPE = (2, 6, 3)
# Those of Keras and KerasHub.
OF_KERAS = {
    "self",
    "kwargs",
    "name",
    "dtype",
    "trainable",
    "weights",
    "preprocessor",
}
# Another value, where it does not follow from the old one.
OTHERS = {
    "activation": "relu",
    "backbone": "another",
    "backward_layer": "another",
    "basis": "companion",
    "candidate": "positive",
    "discretization": "other",
    "dropout": 0.5,
    "eigenvalues": "unit",
    "field": "complex",
    "initial_eigenvalues": "uniform",
    "measure": "legt",
    "merge_mode": "sum",
    "mimo": "general",
    "normalization": "batch",
    "pooling": "max",
    "solver": "rk2",
    "state_size": 12,
    "unit": "lru",
    "unit_arguments": {"state_size": 4},
}
MADE = {
    **UNITS,
    "Bidirectional": lambda seed: layers.Bidirectional(
        UNITS["lru"](seed=seed), name="both"
    ),
    "ResidualBlock": lambda seed: models.ResidualBlock(
        UNITS["lru"](3), gated=True, seed=seed
    ),
    "RecurrentBlock": lambda seed: models.RecurrentBlock(seed=seed),
    "GatedFeedforward": lambda seed: GatedFeedforward(8),
    "SequenceClassifier": lambda seed: make_model(unit="lru", seed=seed),
    "SequenceRegressor": lambda seed: make_model(
        models.SequenceRegressor, unit="lru", seed=seed
    ),
}


def arguments_of(layer):
    parameters = inspect.signature(type(layer).__init__).parameters
    return [name for name in parameters if name not in OF_KERAS]


def another(layer, name):
    """A valid value of an argument that the layer does not have."""
    if name in OTHERS:
        return OTHERS[name]
    for end, value in (
        ("initializer", "ones"),
        ("regularizer", "l2"),
        ("constraint", "non_neg"),
    ):
        if name.endswith(end):
            return value
    old = getattr(layer, name, True)
    if isinstance(old, (bool, np.bool_)):
        return not old
    return 8 if old is None else np.multiply(old, 0.5 if old == 1 else 2)


def set_all(layer):
    """Set every argument; those that took effect, with their values."""
    taken = {}
    for name in arguments_of(layer):
        value = another(layer, name)
        before = getattr(layer, name, None)
        try:
            setattr(layer, name, value)
        except ValueError as refusal:
            assert f"`{name}` " in str(refusal)
            assert f"Received: {name}={value}" in str(refusal)
            assert "from" in str(refusal) and "get_config()" in str(refusal)
            assert getattr(layer, name, None) is before
        else:
            taken[name] = value
    return taken


def flat(outputs):
    return [array(output) for output in keras.tree.flatten(outputs)]


def in_training(layer, inputs):
    """The outputs, from one program on JAX, where seeds are passed on."""
    if keras.backend.backend() != "jax":
        return flat(layer(inputs, training=True))
    trained, others = (
        [variable.value for variable in variables]
        for variables in (
            layer.trainable_variables,
            layer.non_trainable_variables,
        )
    )

    # `stateless_call` passes on what `call` does not take.
    takes = "training" in inspect.signature(layer.call).parameters
    arguments = {"training": True} if takes else {}

    def run(given):
        return layer.stateless_call(trained, others, given[0], **arguments)

    return flat(compiled(run)([inputs])[0])


def assert_alike(one, other, inputs):
    """In training, where random numbers are drawn from the same seed."""
    assert one.get_config() == other.get_config()
    pairs = zip(
        *(in_training(layer, inputs) for layer in (one, other)),
        strict=True,
    )
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", MADE)
def test_what_is_set_takes_effect_or_is_refused(kind):
    layer = MADE[kind](seed=3)
    layer.build(SHAPE)
    config = layer.get_config()
    taken = set_all(layer)
    for name in {"dropout", "return_state", "go_backwards", "activation"}:
        assert name in taken or name not in arguments_of(layer)
    new = type(layer).from_config({**config, **taken})
    new.build(SHAPE)
    new.set_weights(layer.get_weights())
    assert_alike(layer, new, sequences(6))


@pytest.mark.parametrize(
    "name", ["AntisymmetricRNN", "LipschitzRNN", "OrthogonalRNN"]
)
def test_cells_take_an_activation_and_refuse_the_rest(name):
    cell = getattr(layers, f"{name}Cell")(4)
    cell.build((2, 3))
    assert set(set_all(cell)) == {"activation"}
    new = type(cell).from_config(cell.get_config())
    new.build((2, 3))
    new.set_weights(cell.get_weights())
    inputs, states = sequences(1)[:, 0], [np.ones((2, 4), "float32")]
    for one, other in zip(
        flat(cell(inputs, states)), flat(new(inputs, states))
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("kind", ["backbone", "classifier"])
def test_language_models_take_what_hangs_on_no_weight(kind):
    model = make_backbone(dropout=0.0)
    if kind == "classifier":
        model = nlp.LinRecTextClassifier(model, num_classes=3)
    taken = set_all(model)
    assert set(taken) <= {"dropout", "activation", "preprocessor"}
    assert model.get_config()["dropout"] == 0.5
    new = type(model).from_config(model.get_config())
    new.set_weights(model.get_weights())
    ones = np.ones((2, 5), "int32")
    tokens = {"token_ids": ones, "padding_mask": ones}
    assert model.get_config() == new.get_config()
    for got in (model, new):
        calls = [array(got(tokens, training=True)) for _ in range(2)]
        assert np.abs(calls[0] - calls[1]).max() > 1e-3
    np.testing.assert_allclose(
        array(model(tokens)), array(new(tokens)), rtol=1e-5
    )


@pytest.mark.parametrize("batch", [2, None])
def test_stateful_needs_states_that_were_built(batch):
    layer = UNITS["lru"](stateful=batch is not None)
    layer.build((batch, None, 3))
    layer.stateful = False
    if batch is None:
        with pytest.raises(
            ValueError, match="`stateful` .* Received: stateful"
        ):
            layer.stateful = True
        assert not layer.stateful
        return
    layer.stateful = True
    inputs = sequences(4)
    assert np.abs(array(layer(inputs)) - array(layer(inputs))).max() > 1e-3


@pytest.mark.parametrize(
    "attribute, value, message",
    [
        ("dropout", 1.0, "`dropout` .* dropout=1.0"),
        ("return_state", "yes", "`return_state` .* return_state=yes"),
        ("activation", "no", "`activation` .* activation=no"),
        ("units", -1, "`units` of 'reader' cannot .* units=-1"),
    ],
)
def test_a_value_that_is_set_is_checked_as_at_construction(
    attribute, value, message
):
    layer = UNITS["lru"](name="reader")
    with pytest.raises(ValueError, match=message):
        setattr(layer, attribute, value)
    assert layer.get_config() == UNITS["lru"](name="reader").get_config()


def test_what_is_set_in_single_blocks_is_saved(tmp_path):
    model = make_model(unit="rotrnn")
    model.build(SHAPE)
    model.blocks[1].dropout = 0.5
    model.blocks[1].activation = "relu"
    model.blocks[0].unit.activation = "tanh"
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.blocks[1].dropout == 0.5 and again.dropout == 0.0
    inputs = sequences(6)
    np.testing.assert_allclose(array(again(inputs)), array(model(inputs)))
    assert "block_settings" not in make_model(unit="rotrnn").get_config()


@pytest.mark.parametrize("kind", ["rotrnn", "SequenceClassifier"])
def test_copies_have_what_was_set(kind):
    layer = MADE[kind](seed=1)
    layer.build(SHAPE)
    layer.dropout = 0.5
    inputs = sequences(6)
    outputs = array(layer(inputs))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert copied.dropout == 0.5
        np.testing.assert_allclose(array(copied(inputs)), outputs, rtol=1e-6)
        assert np.abs(in_training(copied, inputs)[0] - outputs).max() > 1e-3


def test_dropout_that_is_set_later_trains_in_the_next_program():
    model = make_model(unit="rotrnn", dropout=0.5, seed=1)
    model.build(SHAPE)
    model.dropout = 0.0
    model.compile("sgd", "mse")
    inputs, targets = sequences(6), np.zeros((2, 3), "float32")
    whole = model.evaluate(inputs, targets, verbose=0)
    assert abs(model.train_on_batch(inputs, targets) - whole) < 1e-6
    model.dropout = 0.9
    model.compile("sgd", "mse")
    losses = {float(model.train_on_batch(inputs, targets)) for _ in range(3)}
    assert max(losses) - min(losses) > 1e-4


def test_attributes_of_a_subclass_are_its_own():
    class Named(layers.LRU):
        def __init__(self, units, note, **kwargs):
            super().__init__(units, **kwargs)
            self.note = note

    layer = Named(4, "first")
    layer.build(SHAPE)
    layer.note = "second"
    assert layer.note == "second" and not may_be_set(layer, "units")
    with pytest.raises(ValueError, match=r"Named\.from_config"):
        layer.units = 5
