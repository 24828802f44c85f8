"""Several sequences in one row, separated by a `reset_mask`."""

from itertools import pairwise

import keras
import numpy as np
import pytest
from selection import standing_for_all
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import relative_error
from support.conformance_cases import built
from support.units import REPRESENTATIVE
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import outputs_of
from support.units import sequences

from keras_linrec.models import SequenceRegressor

pytestmark = pytest.mark.capability(
    "several sequences in one row, `reset_mask`"
)
# A linear recurrence, a nonlinear one and a convolution each restart in their
# own way; where frameworks compile, the selection runs only these.
EVERY_UNIT = pytest.mark.parametrize(
    "name", standing_for_all(UNITS, REPRESENTATIVE)
)
TIME = 36
# Rows of 12 and of 24 steps; the latter are long enough for two blocks of an
# LSSL. In rows 0 and 4, the states before the first step matter.
RESETS = np.zeros((5, TIME), bool)
RESETS[0, [12, 24]] = True
RESETS[1, [0, 24]] = True
RESETS[2, [0, 12]] = True
RESETS[3, [0, 12, 24]] = True
RESETS[4, 24] = True
RNG = np.random.default_rng(0)
# Masks with holes. The last sequence of row 2, the first of row 0 and all of
# row 3 are masked.
MASK = RNG.random(RESETS.shape) < 0.6
MASK[2, 12:] = MASK[0, :12] = MASK[3] = False


def apart(layer, inputs, states, **others):
    """Outputs and final states of every sequence, run separately."""
    outputs = np.zeros((*RESETS.shape, layer.output_units))
    finals = [np.zeros_like(state) for state in states]
    for length in (12, 24):
        row, first = all_of(length)
        steps = (row[:, None], first[:, None] + np.arange(length))
        goes_on = ~RESETS[row, first]
        begin = [
            np.where(goes_on.reshape(-1, *[1] * (state.ndim - 1)), part, 0)
            for state in states
            for part in [state[row]]
        ]
        given = {key: value[steps] for key, value in others.items()}
        got, *end = compiled_call(layer, inputs[steps], begin, given)
        outputs[steps] = got
        ends = first + length == TIME
        for whole, part in zip(finals, end):
            whole[row[ends]] = part[ends]
    return outputs, *finals


def all_of(length):
    """The rows and the first steps of all sequences of a given length."""
    found = [
        (row, first)
        for row, resets in enumerate(RESETS)
        for first, last in pairwise(
            sorted({0, TIME, *np.flatnonzero(resets).tolist()})
        )
        if last - first == length
    ]
    return np.transpose(found)


def compiled_call(layer, inputs, states, options):
    """Outputs and states of a call, in one program on JAX."""
    names = list(options)

    def call(given):
        count = 1 + len(states)
        arguments = dict(zip(names, given[count:]))
        return layer(given[0], initial_state=given[1:count], **arguments)

    given = [inputs, *states, *options.values()]
    return [array(part) for part in compiled(call)(given)]


def assert_close(got, expected, tolerance=1e-4):
    for one, other in zip(got, expected, strict=True):
        assert relative_error(array(one), array(other)) < tolerance


def require_separate(name, options):
    layer = built(name, return_state=True)
    inputs = sequences(TIME, batch=5)
    states = initial_states(layer, batch=5)
    expected = apart(layer, inputs, states, **options)
    given = {**options, "reset_mask": RESETS}
    assert_close(compiled_call(layer, inputs, states, given), expected)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@EVERY_UNIT
def test_packed_equals_separate(name, masked):
    require_separate(name, {"mask": MASK} if masked else {})


@pytest.mark.parametrize("name", ["lipschitz_rnn", "lssl"])
@pytest.mark.rest("jax", "tensorflow")
def test_packed_equals_separate_for_irregular_steps(name):
    deltas = RNG.uniform(0.5, 2.0, RESETS.shape).astype("float32")
    require_separate(name, {"time_deltas": deltas})


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@EVERY_UNIT
def test_packed_equals_separate_without_states_too(name, masked):
    layer = built(name)
    inputs = sequences(TIME, batch=5)
    mask = MASK if masked else None
    with_states = built(name, return_state=True)
    with_states.set_weights(layer.get_weights())
    states = with_states.get_initial_state(5)
    options = {"mask": MASK} if masked else {}
    options["reset_mask"] = RESETS
    expected, *_ = compiled_call(with_states, inputs, states, options)
    run = compiled(lambda given: layer(given[0], reset_mask=RESETS, mask=mask))
    assert_close([run([inputs])], [expected])


@EVERY_UNIT
def test_gradients_of_packed_equal_those_of_separate(name):
    layer = built(name, return_state=True)
    resets = np.zeros((1, 9), bool)
    resets[0, [3, 6]] = True
    inputs, states = sequences(9, batch=1), initial_states(layer, batch=1)
    weights = [array(w) for w in layer.trainable_variables]
    count = len(weights)

    def call(arguments, inputs, states, **options):
        outputs, _ = layer.stateless_call(
            arguments[:count],
            layer.non_trainable_variables,
            inputs,
            initial_state=states,
            **options,
        )
        return outputs

    def packed(arguments):
        return call(
            arguments,
            arguments[count],
            arguments[count + 1 :],
            reset_mask=resets,
        )

    def by_sequence(arguments):
        inputs, states = arguments[count], arguments[count + 1 :]
        outputs = []
        for first, last in ((0, 3), (3, 6), (6, 9)):
            got, *end = call(arguments, inputs[:, first:last], states)
            outputs.append(got)
            states = [keras.ops.zeros_like(state) for state in states]
        return keras.ops.concatenate(outputs, axis=1), *end

    arguments = [*weights, inputs, *states]
    cotangents = [
        np.random.default_rng(1).standard_normal(part.shape)
        for part in by_sequence(
            [keras.ops.convert_to_tensor(a) for a in arguments]
        )
    ]
    got = backend_gradients(packed, arguments, cotangents)
    expected = backend_gradients(by_sequence, arguments, cotangents)
    assert any(np.abs(gradient).max() > 1e-3 for gradient in expected[:count])
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4


@EVERY_UNIT
def test_packed_backwards_reads_each_sequence_from_its_end(name):
    layer = built(name)
    resets = np.zeros((1, 9), bool)
    resets[0, [0, 3, 6]] = True
    inputs = sequences(9, batch=1)
    backwards = type(layer).from_config(
        {**layer.get_config(), "go_backwards": True}
    )
    backwards.build((None, None, 3))
    backwards.set_weights(layer.get_weights())
    run = compiled(lambda given: backwards(given[0], reset_mask=resets))
    got = array(run([inputs])).reshape(3, 3, -1)[::-1]
    expected = outputs_of(layer, inputs.reshape(3, 3, 3)[:, ::-1].copy())
    assert_close([got], [expected])


@pytest.mark.rest("jax", "tensorflow")
def test_both_directions_of_a_rotrnn_stay_within_a_sequence():
    layer = built("rotrnn", bidirectional=True)
    inputs = sequences(TIME, batch=5)
    got = array(layer(inputs, reset_mask=RESETS, mask=MASK))
    for first in (0, 12, 24):
        steps = (slice(3, None, -3), slice(first, first + 12))
        expected = layer(inputs[steps].copy(), mask=MASK[steps].copy())
        assert_close([got[steps]], [expected])
    with pytest.raises(ValueError, match="a mask or a reset_mask, not both"):
        layer(
            inputs,
            initial_state=initial_states(layer, batch=5),
            reset_mask=RESETS,
            mask=MASK,
        )


@EVERY_UNIT
def test_the_last_output_is_that_of_the_last_sequence(name):
    layer = built(name, return_sequences=False)
    inputs = sequences(9)
    resets = np.zeros((2, 9), bool)
    resets[:, 6] = True
    run = compiled(lambda given: layer(given[0], reset_mask=resets))
    assert_close([run([inputs])], [outputs_of(layer, inputs[:, 6:].copy())])


# With unknown time; other units use the same scans.
@pytest.mark.parametrize(
    "name",
    standing_for_all(["lssl", "orthogonal_rnn", "rotrnn"], REPRESENTATIVE),
)
def test_a_functional_model_takes_a_reset_mask(name):
    inputs = keras.Input((None, 3))
    resets = keras.Input((None,), dtype="bool")
    layer = UNITS[name]()
    hidden = layer(inputs, reset_mask=resets)
    model = keras.Model([inputs, resets], keras.layers.Dense(2)(hidden))
    data = sequences(TIME, batch=5)
    model.compile("adam", "mse")
    before = layer.get_weights()
    model.fit([data, RESETS], data[..., :2], verbose=0)
    assert any((a != b).any() for a, b in zip(before, layer.get_weights()))
    run = compiled(lambda given: layer(given[0], reset_mask=RESETS))
    expected = model.layers[-1](run([data]))
    assert_close([model.predict([data, RESETS], verbose=0)], [expected])


@EVERY_UNIT
def test_a_reset_mask_that_does_not_fit_is_named(name):
    layer = built(name)
    with pytest.raises(ValueError, match="`reset_mask` should .* Received"):
        layer(sequences(9), reset_mask=np.ones((2, 8), bool))
    with pytest.raises(ValueError, match="`reset_mask` should .* Received"):
        layer(keras.Input((9, 3)), reset_mask=keras.Input((8,), dtype="bool"))


@EVERY_UNIT
def test_nan_and_infinity_stay_in_their_sequence(name):
    layer = built(name)
    inputs = sequences(TIME, batch=5)
    run = compiled(lambda given: layer(given[0], reset_mask=RESETS))
    weights = [RNG.standard_normal((*RESETS.shape, layer.output_units))]

    def outputs_and_slopes():
        (slopes,) = backend_gradients(
            lambda given: [layer(given[0], reset_mask=RESETS)],
            [inputs],
            weights,
        )
        return array(run([inputs])), slopes

    expected = outputs_and_slopes()
    inputs[0, 16], inputs[3, 5] = np.nan, np.inf
    got = outputs_and_slopes()
    assert not np.isfinite(got[0][0, 16:24]).all()
    assert not np.isfinite(got[0][3, 5:12]).all()
    same = np.ones(RESETS.shape, bool)
    same[0, 12:24] = same[3, :12] = False
    for one, other in zip(got, expected):
        assert_close([one[same]], [other[same]])


@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="blocks hand on what they are given: once is enough",
)
def test_a_model_of_blocks_takes_a_reset_mask():
    arguments = {"num_layers": 1, "units": 6}
    model = SequenceRegressor(2, pooling=None, **arguments)
    inputs = sequences(9, batch=1)
    resets = np.zeros((1, 9), bool)
    resets[0, 4] = True
    got = array(model(inputs, reset_mask=resets))
    assert_close(
        [got[:, :4], got[:, 4:]],
        [model(inputs[:, :4].copy()), model(inputs[:, 4:].copy())],
    )
    pooled = SequenceRegressor(2, **arguments)
    with pytest.raises(ValueError, match="pool_size=1. Received"):
        pooled(inputs, reset_mask=resets)
