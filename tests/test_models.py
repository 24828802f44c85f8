"""Residual blocks and the deep models that are made of them."""

import keras
import numpy as np
import pytest
from autodiff import compiled
from units import array
from units import randomise
from units import sequences

from keras_linrec.layers import LSSL
from keras_linrec.layers import RotRNN
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor

NORMALIZATIONS = ("pre", "post")
POOLINGS = ("mean", "last", None)


def make_unit(**arguments):
    return LSSL(**{"state_size": 5, "dt_min": 0.01, **arguments})


def make_model(kind=SequenceClassifier, outputs=3, **arguments):
    defaults = {"depth": 2, "units": 4}
    if "unit" not in arguments:
        defaults.update(state_size=5, dt_min=0.01)
    return kind(outputs, **{**defaults, **arguments})


def built(model, features=3):
    model.build((None, None, features))
    return randomise(model)


def close(got, expected, tolerance=2e-5):
    np.testing.assert_allclose(
        array(got), array(expected), rtol=0, atol=tolerance
    )


@keras.saving.register_keras_serializable("keras_linrec_tests")
class Recorder(keras.layers.Layer):
    """A unit that does nothing, and keeps what it was called with."""

    def call(self, sequences, time_deltas=None, step_rescale=None):
        self.received = (time_deltas, step_rescale)
        return sequences

    def compute_output_shape(self, sequences_shape):
        return sequences_shape


# Blocks.


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_block_is_its_parts_in_the_order_of_transformers(normalization):
    block = built(ResidualBlock(make_unit(), normalization=normalization))
    inputs = sequences(6)
    if normalization == "pre":
        expected = inputs + array(block.unit(block.norm(inputs)))
    else:
        expected = block.norm(inputs + array(block.unit(inputs)))
    close(block(inputs), expected)

    normalised = array(block.norm(inputs))
    gamma, beta = array(block.norm.gamma), array(block.norm.beta)
    centred = inputs - inputs.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(inputs.var(axis=-1, keepdims=True) + 1e-5)
    close(normalised, centred / deviation * gamma + beta)


def test_dropout_takes_the_same_features_of_the_unit_at_every_step():
    block = built(ResidualBlock(make_unit(), dropout=0.5, seed=1), features=16)
    inputs = sequences(6, features=16)
    plain = array(block(inputs)) - inputs
    dropped = array(block(inputs, training=True)) - inputs
    ratio = np.round(dropped / plain, 2)
    assert set(np.unique(ratio)) == {0, 2}
    assert (ratio == ratio[:, :1]).all()
    assert 0.2 < (ratio == 0).mean() < 0.8


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_block_step_by_step_equals_the_whole(normalization):
    block = built(ResidualBlock(make_unit(), normalization=normalization))
    inputs = sequences(6)
    states = block.get_initial_state(batch_size=2)
    outputs = []
    for t in range(6):
        output, states = block.step(inputs[:, t], states)
        outputs.append(array(output))
    close(np.stack(outputs, axis=1), block(inputs))


def test_a_block_hands_on_a_mask_and_its_unit_obeys_it():
    block = built(ResidualBlock(make_unit()))
    inputs = sequences(6)
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], "bool")
    outputs = array(block(inputs, mask=mask))
    for row in range(2):
        kept = inputs[row : row + 1, mask[row]]
        close(outputs[row : row + 1, mask[row]], block(kept))

    implied = keras.layers.Masking()(inputs * mask[:, :, None])
    close(block(implied)[mask], outputs[mask])


@pytest.mark.parametrize(
    "unit",
    [
        lambda: RotRNN(state_size=8, num_heads=2),
        lambda: keras.layers.Bidirectional(make_unit(), merge_mode="sum"),
        lambda: keras.layers.Conv1D(3, 3, padding="causal"),
    ],
    ids=["rotrnn", "bidirectional", "convolution"],
)
def test_a_block_takes_other_layers_and_its_config_brings_them_back(unit):
    block = ResidualBlock(unit(), normalization="post", dropout=0.1, seed=3)
    inputs = sequences(6)
    expected = block(inputs)
    other = ResidualBlock.from_config(block.get_config())
    assert other.get_config() == block.get_config()
    other.build(inputs.shape)
    for weight, value in zip(other.weights, block.weights, strict=True):
        weight.assign(array(value))
    close(other(inputs), expected)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_block_with_an_rms_norm_goes_on_from_states(normalization):
    block = built(
        ResidualBlock(
            make_unit(), normalization=normalization, normalizer="rms"
        )
    )
    assert isinstance(block.norm, keras.layers.RMSNormalization)

    def in_parts(given):
        states = block.get_initial_state(2)
        chunk, states = block.call_with_states(given[0][:, :6], states)
        last, states = block.step(given[0][:, 6], states)
        return block(given[0]), chunk, last

    whole, chunk, last = map(array, compiled(in_parts)([sequences(7)]))
    close(chunk, whole[:, :6])
    close(last, whole[:, 6])


def test_timescales_reach_a_unit_that_takes_them():
    block = ResidualBlock(Recorder())
    time_deltas = np.ones((2, 5), "float32")
    block(sequences(5), time_deltas=time_deltas, step_rescale=2.0)
    received, scale = block.unit.received
    close(received, time_deltas)
    assert scale == 2.0

    for arguments in ({"time_deltas": time_deltas}, {"step_rescale": 2.0}):
        (name,) = arguments
        with pytest.raises(ValueError, match=f"takes no `{name}`. Received"):
            ResidualBlock(RotRNN(state_size=8, num_heads=2))(
                sequences(5), **arguments
            )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"unit": 3}, "`unit` should be a layer or None. Received: unit=3"),
        ({"normalization": "both"}, "Received: normalization=both"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"epsilon": 0}, "Received: epsilon=0"),
        ({"normalizer": "batch"}, "Received: normalizer=batch"),
        ({"unit": LSSL(return_state=True)}, "return_state=False"),
        ({"unit": LSSL(go_backwards=True)}, "go_backwards=False"),
        ({"unit": LSSL(return_sequences=False)}, "return_sequences=True"),
    ],
)
def test_a_wrong_argument_of_a_block_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        ResidualBlock(**arguments)


def test_a_unit_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="given, 3. Received: 4 features"):
        ResidualBlock(make_unit(units=4))(sequences(5))
    block = ResidualBlock(keras.layers.Conv1D(3, 3, padding="same"))
    with pytest.raises(ValueError, match="Received: unit=Conv1D"):
        block.get_initial_state(2)


# Models.


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_is_its_parts(pooling, normalization):
    model = built(make_model(pooling=pooling, normalization=normalization))
    inputs = sequences(6)
    outputs = model.encoder(inputs)
    for block in model.blocks:
        outputs = block(outputs)
    if normalization == "pre":
        outputs = model.norm(outputs)
    outputs = array(outputs)
    if pooling:
        outputs = outputs.mean(axis=1) if pooling == "mean" else outputs[:, -1]
    got = array(model(inputs))
    close(got, model.head(outputs))
    close(got.sum(axis=-1), np.ones(got.shape[:-1]))
    assert (model.norm is None) == (normalization == "post")
    assert len(model.blocks) == 2


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_with_a_mask_equals_one_without_the_masked_steps(pooling):
    model = built(make_model(pooling=pooling))
    inputs = sequences(6, batch=3)
    mask = np.array(
        [[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], "bool"
    )
    inputs[~mask] = np.nan
    outputs = array(model(inputs, mask=mask))
    assert np.isfinite(outputs).all()
    for row in range(2):
        expected = model(inputs[row : row + 1, mask[row]])
        got = outputs[row : row + 1]
        close(got if pooling else got[:, mask[row]], expected)
    if pooling:
        close(outputs[2:], model.head(np.zeros((1, 4), "float32")))


def test_a_model_hands_each_block_what_it_computed_ahead(monkeypatch):
    unit = RotRNN(state_size=4, num_heads=2)
    model = built(make_model(unit=unit, depth=2))
    inputs, states = sequences(3)[:, 0], model.get_initial_state(2)
    expected, _ = model.step(inputs, states)
    ahead = model.step_constants()
    for block in model.blocks:
        # From here on nothing else knows it.
        monkeypatch.setattr(block.unit, "step_constants", None)
    got, _ = model.step(inputs, states, constants=ahead)
    close(got, expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_step_by_step_equals_the_sequence_so_far(pooling):
    model = built(make_model(pooling=pooling))
    inputs = sequences(3)
    states = model.get_initial_state(batch_size=2)
    for t in range(3):
        output, states = model.step(inputs[:, t], states)
        expected = array(model(inputs[:, : t + 1]))
        close(output, expected if pooling else expected[:, -1])


def test_every_block_has_a_copy_of_the_unit_with_its_own_weights():
    model = built(make_model(unit=RotRNN(state_size=8, num_heads=2)))
    units = [block.unit for block in model.blocks]
    assert [type(unit) for unit in units] == [RotRNN, RotRNN]
    one, other = (array(unit.input_kernel) for unit in units)
    assert np.abs(one - other).min() > 0


def test_arguments_of_lssl_reach_every_lssl():
    model = make_model(
        channels=3,
        measure="legt",
        trainable_transition=False,
        trainable_timescale=False,
        dt_max=0.5,
        alpha=1.0,
    )
    for block in model.blocks:
        config = block.unit.get_config()
        assert config["channels"] == 3
        assert config["measure"] == "legt"
        assert config["trainable_transition"] is False
        assert config["trainable_timescale"] is False
        assert (config["dt_min"], config["dt_max"]) == (0.01, 0.5)
        assert config["alpha"] == 1.0
    assert SequenceClassifier(3, depth=1).blocks[0].unit.state_size == 128


@pytest.mark.parametrize("size", ["small", "large"])
def test_the_papers_sizes_have_the_papers_parameters_and_what_we_add(size):
    model = SequenceClassifier.from_size(size, 10, dropout=0.2)
    model.build((None, None, 1))
    depth, h, n, m = {
        "small": (6, 128, 128, 1),
        "large": (4, 256, 256, 4),
    }[size]
    papers = sum(
        array(weight).size
        for block in model.blocks
        for weight in (block.unit.output_matrix, block.unit.kernel)
    )
    assert papers == depth * m * h * (h + n)
    assert papers == {"small": 196_608, "large": 2_097_152}[size]

    norms = (depth + 1) * 2 * h
    encoder_and_head = 2 * h + 10 * (h + 1)
    feedthroughs, time_deltas, biases = depth * h * m, depth * h, depth * h
    transitions_and_inputs = depth * (6 * n + n)
    added = model.count_params() - papers
    assert added == (
        norms
        + encoder_and_head
        + feedthroughs
        + time_deltas
        + biases
        + transitions_and_inputs
    )
    assert model.count_params() == {"small": 207_626, "large": 2_116_106}[size]
    assert {block.dropout for block in model.blocks} == {0.2}


def test_a_size_may_be_changed_in_part():
    model = SequenceRegressor.from_size("small", 2, depth=1, state_size=7)
    assert len(model.blocks) == 1
    assert model.blocks[0].unit.state_size == 7
    assert (model.units, model.output_units) == (128, 2)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (SequenceClassifier, {}),
        (SequenceClassifier, {"activation": None, "measure": "lagt"}),
        (SequenceRegressor, {"pooling": None, "normalization": "post"}),
        (
            SequenceRegressor,
            {"unit": RotRNN(state_size=8, num_heads=2), "dropout": 0.1},
        ),
    ],
)
def test_a_saved_model_is_the_same_when_loaded(kind, arguments, tmp_path):
    model = built(make_model(kind, seed=5, **arguments))
    inputs = sequences(6)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is kind
    assert loaded.get_config() == model.get_config()
    close(loaded(inputs), expected, tolerance=1e-6)
    paths = [weight.path.partition("/")[2] for weight in loaded.weights]
    assert paths == [weight.path.partition("/")[2] for weight in model.weights]


def test_the_paths_of_weights_are_stable():
    paths = [weight.path for weight in built(make_model(name="m")).weights]
    assert {
        "m/encoder/kernel",
        "m/block_1/norm/gamma",
        "m/block_1/lssl/output_matrix",
        "m/norm/beta",
        "m/head/bias",
    } < set(paths)
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_fit_learns_which_half_of_a_sequence_is_larger(policy):
    keras.utils.set_random_seed(0)
    model = make_model(
        outputs=2, units=8, pooling="last", dtype=policy, dropout=0.1
    )
    model.compile(
        keras.optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    inputs = sequences(12, batch=64, features=1)
    labels = (inputs[:, 6:].sum((1, 2)) > inputs[:, :6].sum((1, 2))) * 1
    history = model.fit(
        inputs, labels, batch_size=16, epochs=12, verbose=0
    ).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["accuracy"][-1] > 0.8
    outputs = model(inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}


def test_time_may_be_of_any_length_and_masks_be_an_input_of_a_model():
    inputs = keras.Input((None, 3))
    mask = keras.Input((None,), dtype="bool")
    classifier = make_model(depth=1)
    model = keras.Model([inputs, mask], classifier(inputs, mask=mask))
    assert model.output_shape == (None, 3)
    per_step = make_model(SequenceRegressor, pooling=None)
    assert keras.Sequential(
        [keras.Input((None, 3)), per_step]
    ).output_shape == (None, None, 3)

    model.compile("adam", "sparse_categorical_crossentropy")
    for time in (6, 3):
        values = sequences(time)
        use = np.arange(time) < np.array([[2], [time]])
        values[~use] = np.nan
        if time == 6:
            model.fit([values, use], np.array([0, 1]), verbose=0)
        got = model.predict([values, use], verbose=0)
        close(got[:1], classifier(values[:1, :2]))
        close(got[1:], classifier(values[1:]))


def test_the_mask_of_a_masking_layer_is_obeyed():
    classifier = built(make_model())
    inputs = sequences(6)
    inputs[:, 3:] = 0
    model = keras.Sequential([keras.layers.Masking(), classifier])
    close(model.predict(inputs, verbose=0), classifier(inputs[:, :3]))


def test_the_scale_of_timescales_is_that_of_every_block():
    model = built(make_model())
    inputs = sequences(6)
    outer = keras.Sequential([keras.Input((None, 3)), model])
    before = outer.predict(inputs, verbose=0)
    assert model.step_rescale == 1

    # On models that are compiled already, too.
    model.step_rescale = 2.0
    got = outer.predict(inputs, verbose=0)
    assert [block.unit.step_rescale for block in model.blocks] == [2, 2]
    other = make_model(step_rescale=2.0)
    other.build((None, None, 3))
    for weight, value in zip(other.weights, model.weights, strict=True):
        weight.assign(array(value))
    close(got, other(inputs))
    model.step_rescale = 1.0
    for block in model.blocks:
        weight = block.unit.log_timescale
        weight.assign(array(weight) + np.log(2))
    close(got, outer.predict(inputs, verbose=0))
    assert np.abs(got - before).max() > 1e-3

    with pytest.raises(ValueError, match="Received: unit=RotRNN"):
        make_model(unit=RotRNN(state_size=8, num_heads=2)).step_rescale = 2


def test_steps_of_two_lengths_are_those_of_a_slower_and_a_faster_model():
    model = built(make_model(pooling="last"))
    inputs = sequences(3)
    time_deltas = np.full((2, 3), 2.0, "float32")
    got = model(inputs, time_deltas=time_deltas)
    states = model.get_initial_state(batch_size=2)
    for t in range(3):
        streamed, states = model.step(
            inputs[:, t], states, time_deltas=time_deltas[:, t]
        )
    model.step_rescale = 2.0
    expected = model(inputs)
    close(got, expected)
    close(streamed, expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"outputs": 0}, "Received: classes=0"),
        ({"kind": SequenceRegressor, "outputs": 1.5}, "Received: outputs=1.5"),
        ({"depth": 0}, "Received: depth=0"),
        ({"units": -1}, "Received: units=-1"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"pooling": "max"}, "Received: pooling=max"),
        ({"normalization": None}, "Received: normalization=None"),
        ({"unit": "lssl"}, "Received: unit=lssl"),
        ({"unit": Recorder(), "channels": 2}, "'channels': 2"),
        ({"state_size": 0}, "Received: state_size=0"),
    ],
)
def test_a_wrong_argument_of_a_model_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        make_model(**arguments)


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="Received: size=medium"):
        SequenceClassifier.from_size("medium", 3)
