"""What every sequence unit owes its user, for each of them."""

import contextlib
import json

import keras
import numpy as np
import pytest
from autodiff import compiled
from autodiff import relative_error
from needs_native import require_jit_compiler
from units import DEFINITIONS
from units import UNITS
from units import array
from units import initial_states
from units import randomise
from units import sequences
from units import weights_of

# Where compiling and tracing take most of a test's time, an LDStack stands for
# the linear system that it is made of.
NAMES = [
    name
    for name in UNITS
    if name != "linear_dynamical_system" or keras.backend.backend() == "torch"
]
BOTH_WAYS = ("rotrnn", {"bidirectional": True})
CASES = [(name, {}) for name in NAMES] + [BOTH_WAYS]
IDS = [*NAMES, "rotrnn-bidirectional"]
EVERY_CASE = pytest.mark.parametrize(("name", "form"), CASES, ids=IDS)
EVERY_UNIT = pytest.mark.parametrize("name", NAMES)

MASKS = {
    "right": np.arange(9) < np.array([[4], [9], [1]]),
    "left": np.arange(9) >= np.array([[3], [0], [8]]),
    "holes": np.random.default_rng(0).random((3, 9)) < 0.6,
    "a_whole_row": np.array([[True] * 9, [False] * 9, [False] * 8 + [True]]),
}
EVERY_MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def built(name, features=3, **arguments):
    layer = UNITS[name](**arguments)
    layer.build((None, None, features))
    return randomise(layer)


def twin(layer, **changes):
    """A layer with the same weights and other arguments."""
    other = type(layer).from_config({**layer.get_config(), **changes})
    other.build((None, None, layer.input_spec.axes[-1]))
    other.set_weights(layer.get_weights())
    return other


def assert_close(got, expected, tolerance=1e-4):
    for one, other in zip(
        keras.tree.flatten(got), keras.tree.flatten(expected), strict=True
    ):
        one, other = array(one), array(other)
        assert one.shape == other.shape
        scale = max(np.abs(other).max(initial=0), 1.0)
        assert np.abs(one - other).max(initial=0) <= tolerance * scale


def trimmed(layer, inputs, mask, states):
    """Each row by itself, without its masked steps."""
    outputs = np.zeros((*mask.shape, layer.output_units), "float32")
    finals = [state.copy() for state in states]
    for row, counts in enumerate(mask):
        if not counts.any():
            continue
        got, *final = layer(
            inputs[row : row + 1, counts],
            initial_state=[state[row : row + 1] for state in states],
        )
        for whole, part in zip(finals, final):
            whole[row] = array(part)[0]
        position = np.cumsum(counts) - 1
        seen = position >= 0
        outputs[row, seen] = array(got)[0][position[seen]]
    return [outputs, *finals]


@EVERY_MASK
@EVERY_CASE
def test_masked_equals_trimmed(name, form, mask):
    layer = built(name, return_state=True, **form)
    inputs = sequences(9, batch=3)
    states = initial_states(layer, batch=3)
    got = layer(inputs, initial_state=states, mask=mask)
    assert_close(got, trimmed(layer, inputs, mask, states))


@EVERY_CASE
def test_a_mask_works_without_states_too(name, form):
    mask = MASKS["holes"]
    layer = built(name, **form)
    inputs = sequences(9, batch=3)
    stateful = twin(layer, return_state=True)
    states = [np.zeros_like(s) for s in initial_states(layer, batch=3)]
    expected = trimmed(stateful, inputs, mask, states)[0]
    assert_close(layer(inputs, mask=mask), expected)


@EVERY_MASK
@EVERY_UNIT
def test_the_last_output_is_that_of_the_last_step_that_counts(name, mask):
    layer = built(name)
    inputs = sequences(9, batch=3)
    last = twin(layer, return_sequences=False)
    assert_close(last(inputs, mask=mask), layer(inputs, mask=mask)[:, -1])


@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_UNIT
def test_masked_outputs_are_zero_on_demand(name, return_sequences):
    mask = MASKS["holes"]
    layer = built(name, return_state=True)
    inputs = sequences(9, batch=3)
    zeroed = twin(
        layer, zero_output_for_mask=True, return_sequences=return_sequences
    )
    outputs, *states = layer(inputs, mask=mask)
    expected = array(outputs) * mask[:, :, None]
    expected = expected if return_sequences else expected[:, -1]
    assert_close(zeroed(inputs, mask=mask), [expected, *states])


@EVERY_CASE
def test_what_a_masked_step_holds_is_never_read(name, form):
    mask = MASKS["holes"]
    layer = built(name, return_state=True, **form)
    inputs = sequences(9, batch=3)
    spoiled = np.where(mask[:, :, None], inputs, np.nan)
    assert_close(layer(spoiled, mask=mask), layer(inputs, mask=mask), 0.0)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
@EVERY_UNIT
def test_a_mask_of_any_dtype_is_read(name, dtype):
    layer = built(name)
    inputs = sequences(9, batch=3)
    expected = layer(inputs, mask=MASKS["holes"])
    assert_close(layer(inputs, mask=MASKS["holes"].astype(dtype)), expected)


@EVERY_UNIT
def test_the_mask_of_an_earlier_layer_is_used_and_handed_on(name):
    tokens = np.array([[5, 3, 0, 0], [0, 2, 0, 1]])
    embedding = keras.layers.Embedding(6, 3, mask_zero=True)
    layer = built(name, return_state=True)
    embedded = embedding(tokens)
    outputs, *states = layer(embedded)
    expected = layer(array(embedded), mask=tokens != 0)
    assert_close([outputs, *states], expected)
    assert np.array_equal(array(outputs._keras_mask), tokens != 0)
    # With an initial state Keras no longer hands the mask to the layer.
    start = initial_states(layer)
    assert_close(
        layer(embedded, initial_state=start),
        layer(array(embedded), initial_state=start, mask=tokens != 0),
    )


@EVERY_UNIT
def test_a_functional_model_hands_the_mask_on(name):
    tokens = np.array([[5, 3, 0, 0, 1], [0, 2, 0, 1, 0], [0, 0, 0, 0, 0]])
    inputs = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(6, 3, mask_zero=True)
    first, second = UNITS[name](3), UNITS[name](return_sequences=False)
    model = keras.Model(inputs, second(first(embedding(inputs))))
    model.compile("adam", "mse")
    model.fit(tokens, np.ones((3, 4), "float32"), verbose=0)
    embedded = array(embedding(tokens))
    hidden = array(first(embedded, mask=tokens != 0))
    expected = second(hidden, mask=tokens != 0)
    assert_close(model.predict(tokens, verbose=0), expected)
    assert np.abs(array(expected)[2]).max() == 0


@EVERY_UNIT
def test_chunks_equal_the_whole(name):
    layer = built(name, return_state=True)
    inputs = sequences(33)
    expected = layer(inputs, initial_state=initial_states(layer))
    states, outputs = initial_states(layer), []
    for chunk in np.split(inputs, [16, 17], axis=1):
        output, *states = layer(chunk, initial_state=states)
        outputs.append(array(output))
    assert_close([np.concatenate(outputs, 1), *states], list(expected))


@EVERY_UNIT
def test_steps_equal_the_whole(name):
    layer = built(name, return_state=True)
    inputs = sequences(50)
    expected = layer(inputs)
    states, outputs = layer.get_initial_state(batch_size=2), []
    for step in range(50):
        output, states = layer.step(inputs[:, step], states)
        outputs.append(array(output))
    assert_close([np.stack(outputs, 1), *states], list(expected))


@EVERY_UNIT
def test_chunks_between_steps_equal_the_whole(name):
    layer = built(name)
    inputs = sequences(9)
    mask = np.ones((2, 6), bool)
    mask[1, 2:4] = False

    def in_parts(given):
        states = layer.get_initial_state(2)
        first, states = layer.step(given[0][:, 0], states)
        chunk, states = layer.call_with_states(given[0][:, 1:7], states, mask)
        rest, states = layer.call_with_states(given[0][:, 7:], states)
        parts = keras.ops.expand_dims(first, 1), chunk, rest
        return [keras.ops.concatenate(parts, axis=1), *states]

    got = compiled(in_parts)([inputs])
    whole = twin(layer, return_state=True)
    mask = np.concatenate([np.ones((2, 1)), mask, np.ones((2, 2))], 1) > 0
    expected = compiled(lambda given: whole(given[0], mask=mask))([inputs])
    assert_close(got, expected)
    # And the layer is as it was.
    assert layer.compute_output_shape((2, 9, 3)) == (2, 9, 4)
    assert not layer.wants_states


def test_what_cannot_go_on_from_states_says_so():
    inputs = sequences(4)
    for form in (
        {"return_sequences": False},
        {"go_backwards": True},
        {"bidirectional": True},
    ):
        layer = built("rotrnn", **form)
        (argument,) = form
        with pytest.raises(ValueError, match=f"Received:.*{argument}"):
            layer.call_with_states(inputs, layer.get_initial_state(2))


@EVERY_UNIT
def test_a_step_builds_the_layer_where_its_states_allow(name):
    layer = UNITS[name]()
    if name == "lssl":
        # It has a state for each input feature.
        with pytest.raises(ValueError, match="build or call it before"):
            layer.get_initial_state(2)
        return
    output, _ = layer.step(
        np.zeros((2, 3), "float32"), layer.get_initial_state(2)
    )
    assert tuple(output.shape) == (2, 4)


@EVERY_UNIT
def test_going_backwards_reads_the_reversed_sequence(name):
    layer = built(name, return_state=True)
    inputs, mask = sequences(9, batch=3), MASKS["holes"]
    backwards = twin(layer, go_backwards=True)
    assert_close(
        backwards(inputs, mask=mask),
        layer(inputs[:, ::-1].copy(), mask=mask[:, ::-1].copy()),
    )
    with pytest.raises(ValueError, match="go_backwards=True"):
        backwards.step(inputs[:, 0], initial_states(layer, batch=3))


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_UNIT
def test_bidirectional_equals_both_ways_by_hand(name, return_sequences, masked):
    layer = keras.layers.Bidirectional(
        UNITS[name](return_sequences=return_sequences, return_state=True)
    )
    inputs = sequences(9, batch=3)
    mask = MASKS["holes"] if masked else None
    outputs, *states = layer(inputs, mask=mask)
    forward, *forward_states = layer.forward_layer(inputs, mask=mask)
    backward, *backward_states = layer.backward_layer(inputs, mask=mask)
    backward = array(backward)
    if return_sequences:
        if masked:
            forward = array(forward) * mask[:, :, None]
            backward = backward * mask[:, ::-1, None]
        backward = backward[:, ::-1]
    elif masked:
        forward = array(forward) * mask[:, -1:]
        backward = backward * mask[:, :1]
    expected = np.concatenate([array(forward), backward], axis=-1)
    got_states = [*forward_states, *backward_states]
    if return_sequences or not masked:
        assert_close([outputs, *states], [expected, *got_states])
    else:
        assert_close(states, got_states)


def test_bidirectional_rotrnn_is_two_that_share_all_but_the_output():
    layer = built("rotrnn", bidirectional=True)
    inputs = sequences(20)
    *shared, forward, backward, feedthrough = (
        layer.theta,
        layer.gamma_log,
        layer.rotation_kernel,
        layer.input_kernel,
        layer.output_kernel,
        layer.backward_output_kernel,
        layer.feedthrough,
    )
    total = 0.0
    for kernel, direct, step in (
        (forward, feedthrough, 1),
        (backward, feedthrough * 0.0, -1),
    ):
        one = UNITS["rotrnn"]()
        one.build(inputs.shape)
        for weight, value in zip(one.weights, (*shared, kernel, direct)):
            weight.assign(value)
        total = total + array(one(inputs[:, ::step].copy()))[:, ::step]
    assert_close(layer(inputs), total)
    with pytest.raises(ValueError, match="bidirectional=True"):
        layer.step(inputs[:, 0], initial_states(layer))


def stateful_model(name, batch=2, **arguments):
    layer = UNITS[name](stateful=True, **arguments)
    model = keras.Sequential([keras.Input((None, 3), batch_size=batch), layer])
    return model, layer


@EVERY_UNIT
def test_stateful_predict_continues_where_the_last_batch_ended(name):
    model, layer = stateful_model(name)
    inputs = sequences(30)
    reference = twin_of_stateful(layer)
    expected = array(reference(inputs))
    first = model.predict(inputs[:, :11], verbose=0)
    second = model.predict(inputs[:, 11:], verbose=0)
    assert_close(np.concatenate([first, second], axis=1), expected)
    layer.reset_state()
    assert_close(model.predict(inputs[:, :11], verbose=0), first)
    # Two batches of one call follow one another too.
    layer.reset_state()
    stacked = np.concatenate([inputs[:, :15], inputs[:, 15:]])
    both = model.predict(stacked, batch_size=2, verbose=0)
    assert_close(np.concatenate([both[:2], both[2:]], axis=1), expected)


def twin_of_stateful(layer):
    other = type(layer).from_config({**layer.get_config(), "stateful": False})
    other.build((None, None, 3))
    for weight, value in zip(other.weights, layer.weights):
        weight.assign(array(value).copy())
    return other


@EVERY_UNIT
def test_stateful_fit_continues_where_the_last_batch_ended(name):
    model, layer = stateful_model(name, return_state=False)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    inputs = sequences(12)
    targets = np.zeros((2, 12, 4), "float32")
    for start in (0, 4, 8):
        part = slice(start, start + 4)
        model.fit(inputs[:, part], targets[:, part], shuffle=False, verbose=0)
    other = twin(twin_of_stateful(layer), return_state=True)
    _, *expected = other(inputs)
    assert_close([state.value for state in layer.states], expected)
    model.evaluate(-inputs, targets, verbose=0)
    _, *expected = other(-inputs, initial_state=expected)
    assert_close([state.value for state in layer.states], expected)


# Epoch after epoch, what a ReLU adds to a state of constant norm adds up, and
# so does what enters a system on the unit circle.
FORGETTING = {
    "orthogonal_rnn": {"activation": "tanh"},
    "ldstack": {"initial_eigenvalues": [0.3 + 0.4j, 0.3 - 0.4j]},
    "linear_dynamical_system": {
        "eigenvalues": "standard",
        "state_size": 6,
        "initial_eigenvalues": [0.3 + 0.4j, 0.3 - 0.4j],
    },
}


@EVERY_UNIT
def test_stateful_training_learns(name):
    model, _ = stateful_model(name, **FORGETTING.get(name, {}))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    inputs = sequences(12)
    targets = np.cumsum(inputs, axis=1)[..., :1] * np.ones(4, "float32")
    history = model.fit(inputs, targets, epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert np.isfinite(history).all()


@EVERY_UNIT
def test_states_can_be_set(name):
    model, layer = stateful_model(name)
    inputs, states = sequences(5), initial_states(layer)
    other = twin_of_stateful(layer)
    layer.reset_state(states)
    assert_close(
        model.predict(inputs, verbose=0), other(inputs, initial_state=states)
    )
    layer.reset_states()
    assert np.abs(array(layer.states[0])).max() == 0
    with pytest.raises(ValueError, match="a batch of 3"):
        layer.reset_state(initial_states(layer, batch=3))
    with pytest.raises(ValueError, match="stateful=False"):
        other.reset_state()


@EVERY_UNIT
def test_a_stateful_layer_names_a_batch_that_does_not_fit(name):
    with pytest.raises(ValueError, match="needs a fixed batch size"):
        UNITS[name](stateful=True)(keras.Input((None, 3)))
    _, layer = stateful_model(name)
    with pytest.raises(ValueError, match="Received: a batch of 3"):
        layer(sequences(5, batch=3))


@EVERY_CASE
def test_states_that_do_not_fit_are_named(name, form):
    layer = built(name, **form)
    states = [state[:, :-1] for state in initial_states(layer)]
    with pytest.raises(ValueError, match="has states of the shapes"):
        layer(sequences(5), initial_state=states)


@pytest.mark.parametrize("return_sequences", [True, False])
@EVERY_UNIT
def test_shapes_and_dtypes_are_known_before_the_call(name, return_sequences):
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        layer = UNITS[name](
            return_sequences=return_sequences, return_state=True, dtype=policy
        )
        symbolic = layer(keras.Input((None, 3)))
        real = layer(sequences(7))
        shape = (None, None, 4) if return_sequences else (None, 4)
        assert symbolic[0].shape == shape
        for spec, value in zip(symbolic, real, strict=True):
            assert len(spec.shape) == len(value.shape)
            assert spec.dtype == keras.backend.standardize_dtype(value.dtype)
        assert symbolic[0].dtype == layer.compute_dtype
        assert symbolic[1].dtype == "float32"
        assert layer.compute_output_shape((2, 7, 3))[0] == tuple(real[0].shape)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@EVERY_UNIT
def test_mixed_precision_keeps_the_recurrence_in_float32(name, policy):
    layer = built(name, return_state=True)
    inputs = sequences(4096)
    # 16 bits hold the inputs exactly, so that only the outputs are rounded.
    rounded = keras.ops.cast(
        keras.ops.cast(inputs, policy[len("mixed_") :]), "float32"
    )
    outputs, *states = layer(rounded)
    half = twin(layer, dtype=policy)
    half_outputs, *half_states = half(
        keras.ops.cast(rounded, policy[len("mixed_") :])
    )
    assert_close(half_states, states, 1e-6)
    half_outputs = keras.ops.cast(half_outputs, "float32")
    assert_close(half_outputs, outputs, 2**-8)
    for weight in half.weights:
        assert weight.dtype == "float32"
    # And states are handed on as they are.
    chunk, *_ = half(rounded[:, :5], initial_state=states)
    whole, *_ = layer(rounded[:, :5], initial_state=states)
    assert_close(keras.ops.cast(chunk, "float32"), whole, 2**-8)


@EVERY_UNIT
def test_training_in_mixed_precision_learns(name):
    model = keras.Sequential([UNITS[name](8, dtype="mixed_bfloat16")])
    model.compile("adam", "mse")
    inputs = sequences(20, batch=8)
    targets = inputs.sum(axis=-1, keepdims=True) * np.ones(8, "float32")
    history = model.fit(inputs, targets, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@EVERY_UNIT
def test_a_float64_layer_computes_in_float64(name):
    # TensorFlow's GELU has a float32 constant, and Keras computes cosines in
    # float32 on JAX.
    form = {"activation": "linear"} if name == "lssl" else {}
    turns = name in ("ldstack", "linear_dynamical_system", "rotrnn")
    cosines = turns and keras.backend.backend() == "jax"
    with float64():
        layer = built(name, dtype="float64", return_state=True, **form)
        inputs = sequences(9).astype("float64")
        got = [array(part) for part in layer(inputs)]
        expected = DEFINITIONS[name](
            weights_of(layer),
            inputs,
            **({"activation": np.asarray} if name == "lssl" else {}),
        )
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == "float64"
        assert relative_error(one, other) < (1e-6 if cosines else 1e-12)


@contextlib.contextmanager
def float64():
    """JAX has float64 only where it is switched on."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def train_at_several_lengths(name, form, lengths, jit_compile):
    inputs = keras.Input((None, 3))
    layer = UNITS[name](5, **form)
    outputs = keras.layers.Dense(1)(layer(inputs))
    model = keras.Model(inputs, outputs)
    if jit_compile:
        require_jit_compiler()
    model.compile("adam", "mse", jit_compile=jit_compile)
    for time in lengths:
        data = sequences(time, batch=3)
        before = layer.get_weights()
        model.fit(data, data[..., :1], batch_size=2, verbose=0)
        after = layer.get_weights()
        assert any((a != b).any() for a, b in zip(before, after))
        assert all(np.isfinite(weight).all() for weight in after)
        assert_close(model.predict(data, verbose=0), model(data), 1e-3)


@EVERY_CASE
def test_a_functional_model_trains_at_any_batch_and_length(name, form):
    train_at_several_lengths(name, form, (1, 70), False)


# PyTorch's compiler takes most of a minute for the programs of linear systems.
SLOW_TO_COMPILE = (
    {"ldstack", "linear_dynamical_system"}
    if keras.backend.backend() == "torch"
    else set()
)


# Dynamo warns of PyTorch's own code while it traces.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(NAMES) - SLOW_TO_COMPILE))
def test_a_compiled_model_trains(name):
    train_at_several_lengths(name, {}, (6,), True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@EVERY_CASE
def test_a_compiled_model_trains_at_any_batch_and_length(name, form):
    train_at_several_lengths(name, form, (1, 70, 130), True)


@EVERY_UNIT
def test_dropout_drops_the_same_features_at_every_step(name):
    layer = UNITS[name](dropout=0.5, seed=1)
    inputs = np.ones((40, 6, 3), "float32")
    first = array(layer(inputs, training=True))
    again = UNITS[name](dropout=0.5, seed=1)
    again.build(inputs.shape)
    again.set_weights(layer.get_weights())
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


@EVERY_CASE
def test_config_makes_the_same_layer(name, form):
    layer = built(name, dropout=0.1, return_state=True, **form)
    config = json.loads(json.dumps(layer.get_config()))
    other = type(layer).from_config(config)
    assert json.loads(json.dumps(other.get_config())) == config
    arguments = type(layer).__init__.__code__.co_varnames
    count = type(layer).__init__.__code__.co_argcount
    assert set(arguments[1:count]) <= set(config)
    clone = keras.models.clone_model(
        keras.Sequential([keras.Input((5, 3)), layer])
        if not layer.return_state
        else keras.Model(i := keras.Input((5, 3)), layer(i)[0])
    )
    assert clone.layers[-1].get_config() == layer.get_config()


@EVERY_UNIT
def test_the_layer_passes_keras_own_checks(name):
    from keras.src import testing

    beside = len(built(name).run_time_variables())

    class Checks(testing.TestCase):
        def assertLen(self, container, expected_len, msg=None):
            # Of what is no weight Keras expects PyTorch to hold seeds alone.
            if msg == "Unexpected number of torch_params":
                expected_len += beside
            super().assertLen(container, expected_len, msg)

        def runTest(self):
            self.run_layer_test(
                type(UNITS[name]()),
                init_kwargs=UNITS[name]().get_config(),
                input_shape=(2, 5, 3),
                expected_output_shape=(2, 5, 4),
                expected_num_seed_generators=0,
                expected_num_losses=0,
                supports_masking=True,
            )

    result = Checks().run()
    problems = [text for _, text in result.failures + result.errors]
    assert result.testsRun == 1 and not problems, problems


@EVERY_CASE
def test_a_saved_model_predicts_the_same(name, form, tmp_path):
    model = keras.Sequential(
        [keras.Input((None, 3)), UNITS[name](**form), keras.layers.Dense(2)]
    )
    inputs = sequences(9)
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded.predict(inputs, verbose=0), expected, 1e-6)


@EVERY_UNIT
def test_states_are_no_part_of_a_file(name, tmp_path):
    model, layer = stateful_model(name)
    model.predict(sequences(5), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras.Sequential([keras.Input((None, 3)), UNITS[name]()])
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(
        other.predict(sequences(5), verbose=0),
        twin_of_stateful(layer)(sequences(5)),
    )
    assert np.abs(array(layer.states[0])).max() > 0


@EVERY_UNIT
def test_a_file_of_other_weights_is_named(name, tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), UNITS[name]()])
    model.save_weights(tmp_path / "model.weights.h5")
    form = {"bidirectional": True} if name == "rotrnn" else {"use_bias": False}
    other = keras.Sequential([keras.Input((None, 3)), UNITS[name](**form)])
    with pytest.raises(ValueError, match="has the weights"):
        other.load_weights(tmp_path / "model.weights.h5")


@EVERY_UNIT
def test_regularisers_and_constraints_reach_the_kernels(name):
    layer = UNITS[name](
        kernel_regularizer=keras.regularizers.L2(1.0),
        kernel_constraint=keras.constraints.NonNeg(),
    )
    model = keras.Sequential([layer])
    model.compile("sgd", "mse")
    inputs = sequences(5)
    model.fit(inputs, inputs[..., :1] * np.ones(4, "float32"), verbose=0)
    kernels = [
        weight
        for weight in layer.weights
        if weight.name in ("kernel", "input_kernel", "output_kernel")
    ]
    assert kernels and all(array(w).min() >= 0 for w in kernels)
    expected = sum(np.square(array(w)).sum() for w in kernels)
    assert abs(array(sum(layer.losses)) - expected) < 1e-3 * expected


@EVERY_UNIT
def test_one_bad_row_does_not_reach_the_others(name):
    layer = built(name)
    inputs = sequences(9, batch=3)
    expected = array(layer(inputs))
    inputs[1, 2] = np.nan
    got = array(layer(inputs))
    assert_close(got[[0, 2]], expected[[0, 2]], 1e-6)
    assert np.isnan(got[1]).any()


@EVERY_UNIT
def test_a_compiled_model_with_an_initial_state_uses_the_mask(name):
    layer = built(name, return_state=True)
    inputs = keras.Input((None, 3))
    start = [keras.Input(shape) for shape in layer.state_shapes]
    masked = keras.layers.Masking()(inputs)
    model = keras.Model([inputs, *start], layer(masked, initial_state=start))
    data, states = sequences(9, batch=3), initial_states(layer, batch=3)
    data[:, 5:] = 0
    got = model.predict([data, *states], verbose=0)
    expected, *finals = layer(data[:, :5].copy(), initial_state=states)
    assert_close(got[0][:, :5], expected)
    assert_close(got[0][:, 8], expected[:, 4])
    assert_close(got[1:], finals)


@EVERY_UNIT
def test_a_mask_that_does_not_fit_is_named(name):
    layer = built(name)
    for shape in ((3, 8), (1, 9), (3, 9, 1)):
        with pytest.raises(ValueError, match="`mask` should have the shape"):
            layer(sequences(9, batch=3), mask=np.ones(shape, bool))


@EVERY_UNIT
def test_a_state_of_another_batch_is_named(name):
    layer = built(name)
    with pytest.raises(ValueError, match="has states of the shapes"):
        layer(
            sequences(9, batch=3),
            initial_state=initial_states(layer, batch=1),
        )


@EVERY_UNIT
def test_a_stateful_model_refuses_a_ragged_batch(name):
    model, _ = stateful_model(name, batch=3)
    with pytest.raises(Exception):  # noqa: B017 - each framework has its own
        model.predict(sequences(9, batch=1), batch_size=1, verbose=0)


@EVERY_CASE
def test_shapes_are_known_before_the_layer_is_built(name, form):
    layer = UNITS[name](return_state=True, **form)
    output, *states = layer.compute_output_shape((2, 5, 3))
    assert output == (2, 5, 4)
    built_layer = built(name, return_state=True, **form)
    assert states == [(2, *shape) for shape in built_layer.state_shapes]


def test_the_two_directions_of_a_rotrnn_start_apart():
    layer = UNITS["rotrnn"](bidirectional=True)
    layer.build((None, None, 3))
    difference = array(layer.output_kernel) - array(
        layer.backward_output_kernel
    )
    assert np.abs(difference).max() > 0.01
