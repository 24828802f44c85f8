"""Models that average steps between their blocks."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.model_cases import POOLINGS
from support.model_cases import built
from support.model_cases import make_model
from support.model_cases import make_rotrnn
from support.model_cases import numbers
from support.units import array
from support.units import close
from support.units import in_steps
from support.units import sequences

pytestmark = pytest.mark.weekly("jax", "tensorflow")


def make_averaging(pooling="mean", pool_size=2):
    """A model whose last block reads one average of four steps."""
    return built(
        make_model(
            unit=make_rotrnn(),
            pooling=pooling,
            num_layers=3,
            pool_size=pool_size,
            normalization="batch",
        )
    )


def averaged_between_blocks(model, inputs, sizes):
    """What the last block gives, normalized, by a mean before each block."""
    outputs = array(model.encoder(inputs))
    for block, size in zip(model.blocks, sizes):
        batch, time, features = outputs.shape
        kept = outputs[:, : time // size * size]
        windows = kept.reshape(batch, time // size, size, features)
        outputs = numbers(block, windows.mean(axis=2))
    return numbers(model.norm, outputs)


def pool(kind, outputs):
    if kind == "last":
        return outputs[:, -1]
    return {"mean": np.mean, "max": np.max}[kind](outputs, axis=1)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_blocks_read_averages_of_the_steps_before(pooling):
    model = make_averaging(pooling)
    # What is left at the end fills no average.
    inputs = sequences(11)
    outputs = averaged_between_blocks(model, inputs, (1, 2, 2))
    assert outputs.shape[1] == 2
    if pooling:
        outputs = pool(pooling, outputs)
    expected = array(model.head(outputs))
    close(model(inputs), expected)
    assert model.compute_output_shape(inputs.shape) == expected.shape


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_mask_takes_steps_out_before_they_are_averaged(pooling):
    model = make_averaging(pooling)
    inputs = sequences(11, batch=4)
    mask = np.random.default_rng(0).random((4, 11)) < 0.8
    mask[2], mask[3] = np.arange(11) >= 2, np.arange(11) < 3
    inputs[~mask] = np.nan
    got = array(model(inputs, mask=mask))
    assert np.isfinite(got).all()
    for row in range(3):
        expected = array(model(inputs[row : row + 1, mask[row]]))
        close(
            got[row : row + 1]
            if pooling
            else got[row, None, : len(expected[0])],
            expected,
        )
    if pooling:
        # Three steps make no average of four.
        close(got[3:], model.head(np.zeros((1, 4), "float32")))
    else:
        counts = array(model.compute_mask(inputs, mask))
        assert (counts.sum(axis=1) == mask.sum(axis=1) // 4).all()
        assert counts.shape == got.shape[:2]


@pytest.mark.parametrize("pool_size", [2, (1, 4), (4, 1)])
@pytest.mark.parametrize("pooling", POOLINGS[:-1])
def test_steps_of_an_averaging_model_equal_the_sequence_so_far(
    pooling, pool_size
):
    model = make_averaging(pooling, pool_size)
    inputs = sequences(11)
    got, _ = in_steps(model, inputs)
    for time in range(1, 12):
        close(got[:, time - 1], model(inputs[:, :time]))
    # One output for each average of four, and one before the first.
    assert len(np.unique(np.round(got[0, :, 0], 6))) == 3


@pytest.mark.parametrize("pooling", POOLINGS[:-1])
def test_parts_of_a_stream_that_averages_equal_its_steps(pooling):
    model = make_averaging(pooling, (4, 1) if pooling == "mean" else 2)
    inputs = sequences(11)
    expected, final_states = in_steps(model, inputs)

    def in_parts(given):
        states, outputs = model.get_initial_state(2), []
        for part in (slice(0, 1), slice(1, 6), slice(6, 8), slice(8, 11)):
            output, states = model.call_with_states(given[0][:, part], states)
            outputs.append(output)
        return keras.ops.concatenate(outputs, axis=1), states

    got, states = compiled(in_parts)([inputs])
    close(got, expected)
    for one, other in zip(
        keras.tree.flatten(states), keras.tree.flatten(final_states)
    ):
        close(one, other)


@pytest.mark.parametrize("pool_size", [1, 3])
@pytest.mark.parametrize("pooling", POOLINGS[:-1])
def test_masked_parts_of_a_stream_leave_steps_out(pooling, pool_size):
    model = built(
        make_model(unit=make_rotrnn(), pooling=pooling, pool_size=pool_size)
    )
    inputs = sequences(9)
    mask = np.array([[1, 1, 0, 1, 0, 1, 1, 1, 1], [0] * 5 + [1] * 4], "bool")
    states = model.get_initial_state(2)
    for part in (slice(0, 4), slice(4, 9)):
        got, states = model.call_with_states(
            inputs[:, part], states, mask[:, part]
        )
    for row in range(2):
        expected, _ = in_steps(model, inputs[row : row + 1, mask[row]])
        close(array(got)[row : row + 1, -1], expected[:, -1])


def test_lengths_of_steps_are_not_averaged():
    model = built(make_model(pool_size=2))
    inputs, time_deltas = sequences(4), np.ones((2, 4), "float32")
    with pytest.raises(ValueError, match="`time_deltas` .* pool_size=2"):
        model(inputs, time_deltas=time_deltas)
    states = model.get_initial_state(2)
    with pytest.raises(ValueError, match="`time_deltas` .* pool_size=2"):
        model.step(inputs[:, 0], states, time_deltas=time_deltas[:, 0])
    # A model of one block averages nothing.
    model = built(make_model(pool_size=2, num_layers=1))
    close(model(inputs, time_deltas=time_deltas), model(inputs))


def test_averages_without_pooling_have_no_output_for_a_step():
    model = make_averaging(pooling=None)
    with pytest.raises(ValueError, match="pool_size=2, pooling=None"):
        model.get_initial_state(2)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_place_may_average_another_number_of_steps(pooling):
    inputs = sequences(25, batch=3)
    mask = np.random.default_rng(0).random((3, 25)) < 0.8
    model = make_averaging(pooling, (3, 2))
    outputs = averaged_between_blocks(model, inputs, (1, 3, 2))
    if pooling is None:
        assert model.compute_output_shape((3, 25, 3))[1] == 4
        close(model(inputs), model.head(outputs))
        counts = array(model.compute_mask(inputs, mask))
        assert (counts.sum(axis=1) == mask.sum(axis=1) // 6).all()
    else:
        close(model(inputs), model.head(pool(pooling, outputs)))
    again = type(model).from_config(model.get_config())
    assert again.pool_size == (3, 2)


# The factors of each block, the sizes in training and those of the copy.
RESCALES = [
    ([2, 2, 2], 1, 1),
    ([2, 1, 1], 4, (2, 4)),
    ([4, 2, 1], 2, (1, 1)),
    ([8, 2, 1], (4, 4), (1, 2)),
    ([0.5, 1, 1], 4, (8, 4)),
    ([0.5, 0.5, 0.5], 1, 1),
    ([1.5, 1.125, 1.125], (4, 1), (3, 1)),
]


@pytest.mark.parametrize(("factors", "size", "new_size"), RESCALES)
def test_averages_last_as_long_at_another_rate(factors, size, new_size):
    model = built(make_model(num_layers=3, pool_size=size))
    model.blocks[1].unit.step_rescale = 3.0
    other = model.with_step_rescale(factors[0])
    given = [block.unit.step_rescale for block in other.blocks]
    assert given == pytest.approx(np.multiply(factors, [1, 3, 1]))
    assert other.pool_size == new_size
    weights = zip(other.get_weights(), model.get_weights(), strict=True)
    assert all((one == same).all() for one, same in weights)


@pytest.mark.parametrize("pool_size", [1, 4])
def test_a_copy_for_another_rate_answers_as_the_model_does(pool_size):
    model = built(make_model(num_layers=3, pool_size=pool_size))
    time = np.arange(1600)[None, :, None] * [0.005, 0.0075, 0.0125]
    slow = np.sin(time).astype("float32")
    expected = array(model(slow))
    got = array(model.with_step_rescale(2)(slow[:, ::2]))
    apart = np.abs(got - expected).max()
    assert apart < np.abs(array(model(slow[:, ::2])) - expected).max() / 5
    # The model itself is as it was.
    close(model(slow), expected)


def test_a_stateful_model_has_a_copy_for_another_rate():
    arguments = {"state_size": 5, "stateful": True}
    model = make_model(unit_arguments=arguments)
    expected = array(model(sequences(6)))
    copy = model.with_step_rescale(1)
    assert copy.blocks[0].unit.stateful
    close(copy(sequences(6)), expected)


def test_a_rate_that_no_copy_can_take_is_refused():
    for wrong in (0, -1.0, np.nan, np.inf, "half"):
        message = f"`step_rescale` .* Received: step_rescale={wrong}"
        with pytest.raises(ValueError, match=message):
            make_model().with_step_rescale(wrong)
    with pytest.raises(ValueError, match="Received: unit=RotRNN"):
        make_averaging().with_step_rescale(2)
    # A model that was not built has no weights yet.
    assert not make_model().with_step_rescale(2).built
