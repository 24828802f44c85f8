"""`layers.Bidirectional`: packed and irregular sequences, read both ways."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.autodiff import relative_error
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec.layers import Bidirectional

TIME = 12
RESETS = np.zeros((2, TIME), bool)
RESETS[:, [0, 4, 8]] = True
MASK = np.random.default_rng(0).random((2, TIME)) < 0.7


def built(name="lru", merge_mode="concat", **arguments):
    unit = UNITS[name](**arguments)
    layer = Bidirectional(unit, merge_mode, dtype=unit.dtype_policy)
    layer.build((None, None, 3))
    randomise(layer.forward_layer)
    return layer


def run(layer, inputs, **options):
    names = list(options)

    def call(given):
        return layer(given[0], **dict(zip(names, given[1:])))

    got = compiled(call)([inputs, *options.values()])
    return [array(part) for part in keras.tree.flatten(got)]


def assert_close(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", ["rotrnn", "lssl", "lipschitz_rnn"])
def test_each_packed_sequence_is_read_both_ways_on_its_own(name, masked):
    layer = built(name, return_sequences=True)
    inputs = sequences(TIME)
    options = {"mask": MASK} if masked else {}
    (got,) = run(layer, inputs, reset_mask=RESETS, **options)
    apart = {
        key: value.reshape(-1, 4, *value.shape[2:])
        for key, value in {"sequences": inputs, **options}.items()
    }
    (expected,) = run(layer, apart.pop("sequences"), **apart)
    assert_close([got], [expected.reshape(got.shape)])


@pytest.mark.parametrize("merge_mode", ["concat", "sum", "ave", "mul", None])
def test_outputs_and_states_are_merged_as_in_keras(merge_mode):
    for every in (True, False):
        layer = built(
            "lru", merge_mode, return_sequences=every, return_state=True
        )
        inputs = sequences(TIME)
        _, *states = layer(inputs) if merge_mode else layer(inputs)[1:]
        nowhere = np.zeros_like(RESETS)
        got = layer(inputs, initial_state=states, reset_mask=nowhere)
        expected = layer(inputs, initial_state=states)
        assert [type(part) for part in got] == [type(p) for p in expected]
        assert_close(*(list(map(array, part)) for part in (got, expected)))


def test_time_deltas_go_with_their_steps():
    layer = built("lipschitz_rnn", return_sequences=True)
    inputs = sequences(TIME)
    deltas = np.random.default_rng(1).uniform(0.5, 2, (2, TIME))
    deltas = deltas.astype("float32")
    (got,) = run(layer, inputs, time_deltas=deltas)
    forward = run(layer.forward_layer, inputs, time_deltas=deltas)[0]
    backward = run(layer.backward_layer, inputs, time_deltas=deltas)[0]
    assert_close([got], [np.concatenate([forward, backward[:, ::-1]], -1)])
    assert relative_error(got, run(layer, inputs)[0]) > 1e-3


def test_states_and_time_deltas_keep_their_precision_in_16_bits():
    arguments = {"return_sequences": True, "return_state": True}
    layer = built("lipschitz_rnn", **arguments)
    half = built("lipschitz_rnn", dtype="mixed_bfloat16", **arguments)
    for one, other in zip(half.weights, layer.weights, strict=True):
        one.assign(array(other))
    generator = np.random.default_rng(1)
    options = {
        "initial_state": list(
            generator.standard_normal((2, 2, 4)).astype("float32")
        ),
        "time_deltas": generator.uniform(0, 2, (2, TIME)).astype("float32"),
    }
    # 16 bits hold these inputs exactly.
    inputs = np.round(sequences(TIME))
    got, expected = (one(inputs, **options) for one in (half, layer))
    assert "bfloat16" in str(got[0].dtype)
    assert_close(map(array, got[1:]), map(array, expected[1:]))


@pytest.mark.parametrize("merge_mode", ["concat", "sum", None])
def test_states_are_declared_in_the_dtype_that_they_have(merge_mode):
    layer = built(
        merge_mode=merge_mode, return_state=True, dtype="mixed_bfloat16"
    )
    declared = keras.tree.flatten(layer(keras.Input((5, 3))))
    got = keras.tree.flatten(layer(sequences(5)))
    kinds = [keras.backend.standardize_dtype(part.dtype) for part in got]
    assert [part.dtype for part in declared] == kinds
    assert set(kinds[:-4]) == {"bfloat16"} and set(kinds[-4:]) == {"float32"}
    shapes = [(None, *part.shape[1:]) for part in got]
    assert [tuple(part.shape) for part in declared] == shapes


def test_a_model_passes_masks_and_marks_and_is_saved(tmp_path):
    inputs = keras.Input((TIME, 3))
    resets = keras.Input((TIME,), dtype="bool")
    masked = keras.layers.Masking()(inputs)
    layer = built()
    model = keras.Model([inputs, resets], layer(masked, reset_mask=resets))
    data = sequences(TIME)
    data[~MASK] = 0.0
    got = model.predict([data, RESETS], verbose=0)
    assert_close([got], run(layer, data, mask=MASK, reset_mask=RESETS))
    assert not got[~MASK].any()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.layers[-1], Bidirectional)
    assert_close([loaded.predict([data, RESETS], verbose=0)], [got])


def test_a_layer_that_takes_no_marks_is_named():
    layer = Bidirectional(keras.layers.GRU(2))
    with pytest.raises(TypeError, match="reset_mask"):
        layer(sequences(TIME), reset_mask=RESETS)
    with pytest.raises(ValueError, match="`reset_mask` should .* Received"):
        built()(sequences(TIME), reset_mask=RESETS[:, 1:])


@pytest.mark.parametrize("merge_mode", ["concat", None])
def test_the_mask_goes_on_to_what_reads_the_outputs(merge_mode):
    """Around layers of Keras too, which from 3.16 on drop it themselves."""
    for layer in (
        keras.layers.SimpleRNN(4, return_sequences=True),
        UNITS["lru"](return_state=True, stateful=True),
    ):
        both = Bidirectional(layer, merge_mode)
        outputs = keras.tree.flatten(both(sequences(TIME), mask=MASK))
        for part in outputs[: 1 if merge_mode else 2]:
            assert np.array_equal(array(part._keras_mask), MASK)
    last = Bidirectional(UNITS["lru"](return_sequences=False), merge_mode)
    for part in keras.tree.flatten(last(sequences(TIME), mask=MASK)):
        assert getattr(part, "_keras_mask", None) is None
