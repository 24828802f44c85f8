"""Sequence models continue from states over chunks, as over single steps."""

import numpy as np
import pytest
from support.autodiff import compiled
from support.autodiff import tensors
from support.units import array
from support.units import close
from support.units import randomise
from support.units import sequences

from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import pooling

pytestmark = pytest.mark.weekly("jax", "tensorflow")

TIME = 7
# The first and the third chunk have a single step.
CHUNKS = [slice(0, 1), slice(1, 4), slice(4, 5), slice(5, TIME)]
# The second row starts masked and has a chunk of one masked step; the third
# row is masked throughout.
MASK = np.array(
    [
        [1, 1, 0, 1, 1, 1, 0],
        [0, 1, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0],
    ],
    "bool",
)


def make_model(pooling):
    unit = RotRNN(state_size=4, num_heads=2)
    model = SequenceClassifier(
        2,
        num_layers=2,
        units=4,
        unit=unit,
        pooling=pooling,
        activation=None,
    )
    model.build((None, None, 3))
    return randomise(model)


def in_chunks(model, inputs, mask=None):
    """The outputs at all steps, and the states after the last."""
    states, outputs = model.get_initial_state(len(inputs)), []
    for chunk in CHUNKS:
        chunk_mask = None if mask is None else mask[:, chunk]
        output, states = model.call_with_states(
            inputs[:, chunk], states, chunk_mask
        )
        outputs.append(output)
    return outputs, states


def in_steps(model, inputs):
    states, outputs = model.get_initial_state(len(inputs)), []
    for time in range(TIME):
        output, states = model.step(inputs[:, time], states)
        outputs.append(output)
    return outputs, states


def run(function):
    """The function of seven steps of three rows, in one program on JAX."""
    return compiled(lambda given: function(given[0]))([sequences(TIME, 3)])


def joined(outputs):
    return np.concatenate([array(output) for output in outputs], axis=1)


@pytest.mark.parametrize("pooling", ["mean", "max", "last", None])
def test_chunks_give_the_outputs_of_steps_and_of_the_whole(pooling):
    model = make_model(pooling)
    (chunks, _), (steps, _), whole = run(
        lambda inputs: (
            in_chunks(model, inputs),
            in_steps(model, inputs),
            model(inputs),
        )
    )
    chunks = joined(chunks)
    close(chunks, np.stack([array(step) for step in steps], axis=1))
    close(chunks if pooling is None else chunks[:, -1], whole)


@pytest.mark.parametrize("pooling", ["mean", "max", "last", None])
def test_masked_chunks_equal_the_masked_whole(pooling):
    model = make_model(pooling)
    nothing = np.where(MASK[..., None], 0.0, np.nan).astype("float32")
    (chunks, _), whole = run(
        lambda inputs: (
            in_chunks(model, inputs + nothing, MASK),
            model(inputs, mask=MASK),
        )
    )
    chunks = joined(chunks)
    close(chunks if pooling is None else chunks[:, -1], whole)


def test_a_masked_chunk_gives_the_last_output_again():
    model = make_model("last")

    def advance(inputs):
        outputs, states = model.call_with_states(
            inputs[:, :4], model.get_initial_state(3)
        )
        mask = np.zeros((3, 3), "bool")
        again, _ = model.call_with_states(inputs[:, 4:], states, mask)
        return outputs[:, -1:], again

    last, again = run(advance)
    close(again, np.repeat(array(last), 3, axis=1))


def test_the_running_mean_skips_masked_steps():
    model = make_model("mean")
    (_, states), (_, steps) = run(
        lambda inputs: (in_chunks(model, inputs, MASK), in_steps(model, inputs))
    )
    *_, (mean, count, _) = states
    close(count, MASK.sum(axis=1, keepdims=True))
    # Without a step there is no mean, and the state stays at zero.
    close(mean[2], np.zeros(4))
    *_, (_, count, _) = steps
    close(count, np.full((3, 1), TIME))


def test_the_running_mean_is_the_mean_of_the_features_before_the_head():
    model = make_model("mean")
    features = make_model(None)
    for weight, value in zip(features.weights, model.weights, strict=True):
        weight.assign(array(value))
    features.head.kernel.assign(np.eye(4, 2, dtype="float32"))
    features.head.bias.assign(np.zeros(2, "float32"))
    (_, states), outputs = run(
        lambda inputs: (in_chunks(model, inputs), features(inputs))
    )
    mean, *_ = states[-1]
    close(mean[:, :2], array(outputs).mean(axis=1))


def test_a_mean_over_millions_of_steps_still_moves():
    """In steps and in parts, beyond what float32 resolves and counts."""
    steps, before = 400, 2.0**24
    (values,) = tensors([np.full((1, 50, 1), 1.4)])

    def in_steps(states):
        for time in range(50):
            states = pooling.pool_step("mean", values[:, time], states)
        return states

    def in_parts(states):
        return pooling.pool_part("mean", values, states)[1]

    given = [np.ones((1, 1)), np.full((1, 1), before), np.zeros((1, 2))]
    for advance in map(compiled, (in_steps, in_parts)):
        states = tensors(given)
        for _ in range(steps // 50):
            states = advance(states)
        mean, count, rest = map(array, states)
        assert count[0, 0] + np.float64(rest[0, 1]) == before + steps
        moved = np.float64(mean[0, 0]) + rest[0, 0] - 1
        expected = 0.4 * steps / (before + steps)
        np.testing.assert_allclose(moved, expected, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_stream_of_packed_sequences_needs_an_output_for_each_step(pooling):
    model = make_model(pooling)
    states = model.get_initial_state(2)
    resets = np.zeros((2, TIME), "bool")
    with pytest.raises(ValueError, match=f"Received: .* pooling={pooling}"):
        model.call_with_states(sequences(TIME), states, reset_mask=resets)


def test_a_masked_chunk_leaves_the_states_alone():
    model = make_model("mean")

    def advance(inputs):
        _, before = model.call_with_states(
            inputs[:, :4], model.get_initial_state(3)
        )
        nothing = np.zeros((3, 3), "bool")
        _, after = model.call_with_states(inputs[:, 4:], before, nothing)
        return before, after

    before, after = run(advance)
    for part_before, part_after in zip(before, after, strict=True):
        for one, other in zip(part_before, part_after, strict=True):
            close(one, other)
