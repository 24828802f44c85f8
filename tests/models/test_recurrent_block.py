"""RecurrentBlock: its parts together, and all that a unit promises."""

import math

import keras
import numpy as np
import pytest
from definitions.causal_convolution import causal_convolution
from definitions.rglru import rglru
from support.autodiff import backend_gradients
from support.units import array
from support.units import close
from support.units import in_steps
from support.units import initial_states
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec import models
from keras_linrec.export import export_step
from keras_linrec.layers import LRU
from keras_linrec.layers import RGLRU
from keras_linrec.models import RecurrentBlock
from keras_linrec.models.units import UNITS

MASK = np.array([[1, 1, 0, 1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1, 0, 1, 1]]) > 0
RESETS = np.zeros((2, 9), bool)
RESETS[0, 3] = RESETS[1, [0, 5]] = True


def built(**arguments):
    block = RecurrentBlock(**{"width": 4, **arguments})
    block.build((None, None, 3))
    return randomise(block)


def twin(block, **changes):
    other = RecurrentBlock.from_config({**block.get_config(), **changes})
    other.build((None, None, 3))
    other.set_weights(block.get_weights())
    return other


def own_weights(block):
    weights = {weight.path: array(weight) for weight in block._own_weights()}
    return {path.split("/")[-1]: w for path, w in weights.items()}


def defined(block, inputs, before, state):
    """What the paper's equations give in float64."""
    own = own_weights(block)
    gate = inputs @ own["gate_kernel"] + own["gate_bias"]
    hidden = inputs @ own["input_kernel"] + own["input_bias"]
    hidden, before = causal_convolution(
        weights_of(block.convolution), hidden, before
    )
    hidden, state = rglru(weights_of(block.unit), hidden, state)
    gate = 0.5 * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)))
    outputs = (gate * hidden) @ own["output_kernel"] + own["output_bias"]
    return outputs, before, state


@pytest.mark.parametrize("time", [1, 2, 30])
def test_it_is_the_papers_block(time):
    block = built(units=5, return_state=True)
    inputs, states = sequences(time), initial_states(block)
    got = block(inputs, initial_state=states)
    expected = defined(block, inputs.astype("float64"), *states)
    for one, other in zip(got, expected, strict=True):
        close(one, other)


def test_masked_steps_do_not_happen():
    block = built(return_state=True)
    inputs, states = sequences(9), initial_states(block)
    outputs, *finals = block(inputs, initial_state=states, mask=MASK)
    for row, counts in enumerate(MASK):
        expected, *last = defined(
            block,
            inputs[row : row + 1, counts].astype("float64"),
            *(state[row : row + 1] for state in states),
        )
        close(outputs[row][counts], expected[0])
        for one, other in zip(finals, last):
            close(one[row : row + 1], other)
    inputs[~MASK] = np.nan
    close(block(inputs, initial_state=states, mask=MASK)[0], outputs)


@pytest.mark.parametrize("masked", [False, True])
def test_packed_sequences_are_as_if_alone(masked):
    block = built()
    inputs = sequences(9)
    mask = MASK if masked else np.ones_like(MASK)
    outputs = array(block(inputs, reset_mask=RESETS, mask=mask))
    for row, ends in ((0, (0, 3, 9)), (1, (0, 5, 9))):
        for first, last in zip(ends, ends[1:]):
            steps = slice(row, row + 1), slice(first, last)
            expected = block(inputs[steps].copy(), mask=mask[steps].copy())
            close(outputs[steps], expected)


def test_steps_and_chunks_are_the_whole():
    block = built(return_state=True)
    inputs = sequences(9)
    outputs, *states = block(inputs)
    got, last = in_steps(twin(block, return_state=False), inputs)
    close(got, outputs)
    first, between = block.call_with_states(
        inputs[:, :2].copy(), block.get_initial_state(2)
    )
    rest, end = block.call_with_states(inputs[:, 2:].copy(), between)
    close(np.concatenate([array(first), array(rest)], axis=1), outputs)
    for one, other, third in zip(states, last, end, strict=True):
        close(one, other)
        close(one, third)
    alone = twin(block, return_sequences=False, return_state=False)
    close(alone(inputs), outputs[:, -1])
    constants = block.step_constants()
    ahead, _ = block.step(inputs[:, 0], block.get_initial_state(2), constants)
    close(ahead, outputs[:, 0])


def test_a_stateful_block_goes_on():
    block = built()
    inputs = sequences(8)
    expected = block(inputs)
    kept = RecurrentBlock.from_config({**block.get_config(), "stateful": True})
    kept.build((2, None, 3))
    kept.set_weights(block.get_weights())
    parts = [array(kept(part)) for part in np.split(inputs, 2, axis=1)]
    close(np.concatenate(parts, axis=1), expected)


def test_every_weight_has_a_gradient():
    block = built()
    count = len(block.trainable_variables)

    def run(given):
        outputs, _ = block.stateless_call(
            given[:count], block.non_trainable_variables, given[count]
        )
        return [outputs]

    arguments = [*map(array, block.trainable_variables), sequences(6)]
    for gradient in backend_gradients(run, arguments, [np.ones((2, 6, 3))]):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


@pytest.mark.parametrize("name", UNITS)
def test_any_unit_fits_by_name(name):
    arguments = {"units": 6}
    if name == "orthogonal_rnn":
        arguments["train_initial_state"] = True
    block = built(
        width=6,
        unit=name,
        unit_arguments=arguments,
        kernel_size=3,
        bias_initializer="ones",
        return_state=True,
    )
    inputs = sequences(5)
    outputs, *states = block(inputs)
    close(in_steps(block, inputs)[0], outputs)
    # Behind the end of a row the projections of zeros are not zero.
    padded = np.arange(5) < [[5], [3]]
    short, *last = block(inputs[1:, :3].copy())
    got, *finals = block(inputs, mask=padded)
    close(got[:1], outputs[:1])
    close(got[1:, :3], short)
    for whole, end, final in zip(states, last, finals, strict=True):
        close(final[:1], whole[:1])
        close(final[1:], end)


@pytest.mark.parametrize("unit", ["rglru", RGLRU(num_heads=2, name="mine")])
def test_a_file_gives_the_block_back(unit, tmp_path):
    block = built(unit=unit, kernel_size=3)
    block.unit.trainable = False
    model = keras.Sequential([keras.Input((None, 3)), block])
    inputs = sequences(6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    close(loaded(inputs), model(inputs), 1e-6)
    assert not loaded.layers[0].unit.trainable
    assert loaded.layers[0].convolution.trainable
    assert loaded.layers[0].unit.name == block.unit.name
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras.Sequential(
        [keras.Input((None, 3)), RecurrentBlock.from_config(block.get_config())]
    )
    other.load_weights(tmp_path / "model.weights.h5")
    close(other(inputs), model(inputs), 1e-6)
    copy = keras.models.clone_model(model)
    assert copy.layers[0].unit is not block.unit


def test_a_model_of_blocks_streams():
    block = RecurrentBlock(unit_arguments={"num_heads": 2})
    model = models.SequenceRegressor(
        2, num_layers=2, units=4, unit=block, pooling=None
    )
    inputs = sequences(7)
    outputs = model(inputs)
    assert len({id(one.unit) for one in model.blocks}) == 2
    close(in_steps(model, inputs)[0], outputs)
    copy = type(model).from_config(model.get_config())
    copy.build((None, None, 3))
    copy.set_weights(model.get_weights())
    close(copy(inputs), outputs)


def test_a_step_is_exported():
    block = built()
    model = keras.Sequential([keras.Input((None, 3)), block])
    step = export_step(model)
    inputs = sequences(5)
    states = block.get_initial_state(2)
    for index in range(5):
        output, *states = step([inputs[:, index], *states])
    close(output, model(inputs)[:, -1])


def test_trainable_false_freezes_all_parts():
    block = RecurrentBlock(trainable=False)
    block.build((None, None, 3))
    assert not block.trainable_variables
    block.trainable = True
    assert len(block.trainable_variables) == len(block.weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "`width` should .* Received: width=0"),
        ({"unit": "gru"}, "`unit` should be .* Received: unit=gru"),
        ({"unit": keras.layers.GRU(4)}, "keras_linrec.layers.*GRU"),
        ({"unit": LRU(go_backwards=True)}, "go_backwards=False. Received"),
        ({"unit": LRU(dropout=0.5)}, "dropout=0.0. Received: .*dropout=0.5"),
        ({"unit": LRU(), "unit_arguments": {}}, "`unit_arguments` should be"),
        ({"kernel_size": 1}, "2 or more.* Received: kernel_size=1"),
    ],
)
def test_wrong_arguments_are_named_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecurrentBlock(**arguments)


def test_a_unit_of_another_width_is_named_when_built():
    with pytest.raises(
        ValueError, match="it is given, 3. Received: 5 features"
    ):
        RecurrentBlock(unit=LRU(5)).build((None, None, 3))
