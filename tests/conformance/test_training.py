"""What a user of Keras sets in training."""

import keras
import numpy as np
import pytest
from support.conformance_cases import EAGERLY
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.conformance_cases import sequential
from support.conformance_cases import twin
from support.conformance_cases import unit_of
from support.units import UNITS
from support.units import array
from support.units import sequences


def trained(model, inputs, targets, **arguments):
    """A model after one step of plain gradient descent."""
    model.compile(keras.optimizers.SGD(0.1), "mse", **EAGERLY)
    model.fit(
        inputs,
        targets,
        batch_size=len(inputs),
        shuffle=False,
        verbose=0,
        **arguments,
    )
    return model


@pytest.mark.capability("`trainable=False`")
@EVERY_LAYER_AND_CELL
def test_what_is_frozen_stays(name):
    unit = made(name, trainable=False)
    model = sequential(unit, keras.layers.Dense(1))
    assert not unit.trainable_variables
    before = model.get_weights()
    count = len(unit.weights)
    inputs = sequences(5)
    trained(model, inputs, inputs[..., :1])
    after = model.get_weights()
    for one, other in zip(before[:count], after[:count]):
        assert (one == other).all()
    assert (before[count] != after[count]).any()


@pytest.mark.capability("`trainable=False`")
@EVERY_LAYER
def test_what_is_frozen_can_be_thawed(name):
    unit = made(name)
    model = sequential(unit)
    count = len(unit.trainable_variables)
    unit.trainable = False
    assert not model.trainable_variables
    unit.trainable = True
    assert len(model.trainable_variables) == count
    inputs = sequences(5)
    before = model.get_weights()
    trained(model, inputs, np.ones((2, 5, 4), "float32"))
    assert any((a != b).any() for a, b in zip(before, model.get_weights()))


@pytest.mark.capability("sample weights")
@EVERY_LAYER_AND_CELL
def test_a_weight_of_two_counts_a_row_twice_and_none_leaves_it_out(name):
    unit = built(name, return_sequences=False)
    inputs = sequences(5, batch=3)
    targets = np.ones((3, 4), "float32")
    weighted = trained(
        sequential(twin(unit)),
        inputs,
        targets,
        sample_weight=np.array([2.0, 0.0, 1.0]),
    )
    repeated = trained(sequential(twin(unit)), inputs[[0, 0, 2]], targets)
    assert_close(weighted.get_weights(), repeated.get_weights(), 1e-5)


@pytest.mark.capability("sample weights")
@EVERY_LAYER
def test_every_step_may_have_a_weight_of_its_own(name):
    unit = built(name)
    inputs = sequences(6)
    targets = np.ones((2, 6, 4), "float32")
    weights = np.zeros((2, 6), "float32")
    weights[:, :3] = 2.0
    weighted = trained(
        sequential(twin(unit)), inputs, targets, sample_weight=weights
    )
    # Of a recurrence, later steps that do not count change nothing.
    half = trained(sequential(twin(unit)), inputs[:, :3], targets[:, :3])
    assert_close(weighted.get_weights(), half.get_weights(), 1e-5)


@pytest.mark.capability("regularisers, constraints")
@EVERY_LAYER_AND_CELL
def test_regularisers_and_constraints_reach_the_kernels(name):
    layer = made(
        name,
        kernel_regularizer=keras.regularizers.L2(1.0),
        kernel_constraint=keras.constraints.NonNeg(),
    )
    model = keras.Sequential([layer])
    model.compile("sgd", "mse", **EAGERLY)
    inputs = sequences(5)
    model.fit(inputs, inputs[..., :1] * np.ones(4, "float32"), verbose=0)
    weights = {weight.name: weight for weight in layer.weights}
    kernels = [weights[kernel] for kernel in unit_of(name).kernels]
    assert all(array(w).min() >= 0 for w in kernels)
    expected = sum(np.square(array(w)).sum() for w in kernels)
    assert abs(array(sum(layer.losses)) - expected) < 1e-3 * expected


@pytest.mark.capability("regularisers, constraints")
@EVERY_LAYER
def test_what_a_layer_gives_can_be_regularised(name):
    layer = built(name, activity_regularizer=keras.regularizers.L1(1.0))
    inputs = sequences(5)
    outputs = array(layer(inputs))
    (loss,) = layer.losses
    # Keras takes the mean of the rows.
    expected = np.abs(outputs).sum() / len(inputs)
    assert abs(array(loss) - expected) < 1e-4 * expected


@pytest.mark.capability("dropout, seeds")
@EVERY_LAYER
def test_dropout_drops_the_same_features_at_every_step(name):
    layer = UNITS[name](dropout=0.5, seed=1)
    inputs = np.ones((40, 6, 3), "float32")
    first = array(layer(inputs, training=True))
    again = twin(layer)
    assert_close(again(inputs, training=True), first, 0.0)
    assert_close(layer(inputs, training=False), twin(layer)(inputs), 0.0)
    kept = [
        array(layer(inputs * np.array(mask, "float32")))
        for mask in np.ndindex(2, 2, 2)
        for mask in [[2.0 * kept for kept in mask]]
    ]
    # Every row is what some subset of its features gives.
    for row in range(len(inputs)):
        assert min(np.abs(first[row] - one[row]).max() for one in kept) < 1e-4


@pytest.mark.capability("dropout, seeds")
@EVERY_LAYER
def test_a_seed_repeats_a_training(name):
    def train():
        keras.utils.set_random_seed(5)
        model = sequential(UNITS[name](dropout=0.5, seed=1))
        model.compile("adam", "mse", **EAGERLY)
        inputs = sequences(5, batch=4)
        targets = np.ones((4, 5, 4), "float32")
        history = model.fit(inputs, targets, batch_size=2, verbose=0)
        return [history.history["loss"], *model.get_weights()]

    assert_close(train(), train(), 1e-6)
