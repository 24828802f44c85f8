"""What models cost: counted exactly, or estimated as closely as is said."""

import keras
import pytest
from support.workers import found_by

from keras_linrec import layers
from keras_linrec.models import RecurrentBlock
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor
from keras_linrec.models import cost
from keras_linrec.models.units import UNITS

BATCH, TIME = 4, 100


def built(layer, features=3):
    layer.build((None, None, features))
    return layer


def model_of(unit, **arguments):
    arguments = {"num_layers": 2, "units": 8, **arguments}
    model = SequenceClassifier(
        5, unit=unit, unit_arguments={"units": 8}, **arguments
    )
    return built(model)


@pytest.mark.parametrize("unit", UNITS)
def test_weights_and_states_are_counted_exactly(unit):
    model = model_of(unit)
    found = cost(model, BATCH, TIME)
    assert found.parameters == model.count_params()
    weights = [keras.ops.convert_to_numpy(one) for one in model.weights]
    assert found.weight_bytes == sum(one.nbytes for one in weights)
    states = keras.tree.flatten(model.get_initial_state(BATCH))
    states = [keras.ops.convert_to_numpy(one) for one in states]
    assert found.state_bytes == sum(one.nbytes for one in states)


def test_arithmetic_and_memory_grow_with_the_batch_and_the_steps():
    model = model_of("rotrnn", pooling=None)
    one = cost(model, 1, 1)
    many = cost(model, BATCH, TIME)
    assert many.multiply_adds == BATCH * TIME * one.multiply_adds
    assert many.kept_bytes == BATCH * TIME * one.kept_bytes
    assert many.state_bytes == BATCH * one.state_bytes


def test_what_a_model_multiplies_and_keeps():
    model = SequenceRegressor(
        2, num_layers=1, units=8, unit="orthogonal_rnn", pooling=None,
        unit_arguments={"units": 8},
    )  # fmt: skip
    found = cost(built(model), BATCH, TIME)
    # The unit's states once beside its weights.
    assert found.multiply_adds == BATCH * TIME * (model.count_params() + 8)
    # Inputs, encoder, norm, unit, sum, norm, head.
    assert found.kept_bytes == 4 * BATCH * TIME * (3 + 5 * 8 + 2)
    untrained = cost(model, BATCH, TIME, training=False)
    # The unit: inputs and outputs.
    assert untrained.kept_bytes == 4 * BATCH * TIME * (8 + 8)
    assert untrained[:3] == found[:3]


def test_averages_between_blocks_save_steps():
    plain = cost(model_of("rotrnn"), BATCH, TIME)
    averaged = cost(model_of("rotrnn", pool_size=4), BATCH, TIME)
    assert averaged.parameters == plain.parameters
    assert averaged.multiply_adds < 0.7 * plain.multiply_adds
    assert averaged.kept_bytes < 0.7 * plain.kept_bytes


def test_a_sequential_or_functional_model_costs_what_its_layers_do():
    inputs = keras.Input((None, 3))
    hidden = keras.layers.Dense(8)(inputs)
    states = layers.OrthogonalRNN(8, return_sequences=True)(hidden)
    outputs = keras.layers.Dense(2)(keras.layers.Add()([hidden, states]))
    model = keras.Model(inputs, outputs)
    found = cost(model, BATCH, TIME)
    assert found.multiply_adds == BATCH * TIME * (model.count_params() + 8)
    assert found.kept_bytes == 4 * BATCH * TIME * (3 + 8 + 8 + 8 + 2)
    assert found.state_bytes == 4 * BATCH * 8
    wrapped = keras.Sequential([keras.Input((TIME, 3)), model])
    assert cost(wrapped, BATCH, TIME) == found
    with pytest.raises(ValueError, match="`time` should be 100"):
        cost(wrapped, BATCH, TIME + 1)


def test_tokens_are_looked_up_and_masks_cost_nothing():
    tokens = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(10, 4),
            RecurrentBlock(),
        ]
    )
    block = tokens.layers[-1]
    states = cost(block, 1, 1).state_bytes // 4
    once = block.count_params() + states
    found = cost(tokens, BATCH, TIME)
    assert found.multiply_adds == BATCH * TIME * once
    assert found.parameters == tokens.count_params()
    masked = keras.Sequential(
        [keras.Input((None, 3)), keras.layers.Masking(), layers.LRU()]
    )
    found = cost(masked, BATCH, TIME)
    alone = cost(built(layers.LRU()), BATCH, TIME)
    assert found.multiply_adds == alone.multiply_adds


def test_what_reads_from_the_end_has_no_stream():
    both = built(layers.Bidirectional(layers.RotRNN(4)))
    found = cost(both, BATCH, TIME)
    assert found.state_bytes is None
    assert found.parameters == both.count_params()
    pooled = model_of("rotrnn", pool_size=4, pooling=None)
    assert cost(pooled, BATCH, TIME).state_bytes is None


def test_narrow_numbers_take_less():
    plain = cost(model_of("rotrnn"), BATCH, TIME)
    narrow = cost(model_of("rotrnn", dtype="mixed_bfloat16"), BATCH, TIME)
    assert narrow.weight_bytes == plain.weight_bytes
    assert narrow.kept_bytes < 0.6 * plain.kept_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((keras.layers.Dense(2), 1, 1), "built.*Received: model=dense"),
        ((None, 1, 1), "built.*Received: model=None"),
        ((1, 0, 1), "`batch_size`.*Received: batch_size=0"),
        ((1, 1, 0.5), "`time`.*Received: time=0.5"),
        ((1, 1, 1, 2), "`training`.*Received: training=2"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        cost(*arguments)


@pytest.mark.rest
@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow",
    reason="TensorFlow keeps freed memory: no peak is measured",
)
def test_a_training_step_takes_at_most_three_times_what_is_kept():
    units = "rotrnn", "lssl", "lipschitz_rnn", "rglru"
    for unit, (kept, peak) in found_by("memory_worker", *units).items():
        if peak is None:
            pytest.skip("the peak of a process is known on Linux alone")
        assert 1 < peak / kept < 3, (unit, kept, peak)
