"""Residual blocks and the deep models that are made of them."""

import keras
import numpy as np
import pytest
from autodiff import compiled
from units import array
from units import randomise
from units import sequences

from keras_linrec import layers
from keras_linrec.layers import LSSL
from keras_linrec.layers import LDStack
from keras_linrec.layers import RotRNN
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor
from keras_linrec.models.units import UNITS

NORMALIZATIONS = ("layer", "rms", "batch")
POOLINGS = ("mean", "max", "last", None)
# Those without a nonlinearity of their own.
LINEAR = ("linear_dynamical_system", "lru", "rotrnn")

EVERY_NORM = pytest.mark.parametrize(
    ("normalization", "norm_first"),
    [*((name, True) for name in NORMALIZATIONS), ("layer", False)],
)


def make_unit(**arguments):
    return LSSL(**{"state_size": 5, "dt_min": 0.01, **arguments})


def make_rotrnn(**arguments):
    return RotRNN(**{"state_size": 8, "num_heads": 2, **arguments})


def make_model(kind=SequenceClassifier, outputs=3, **arguments):
    defaults = {"num_layers": 2, "units": 4}
    if "unit" not in arguments:
        defaults["unit_arguments"] = {"state_size": 5, "dt_min": 0.01}
    return kind(outputs, **{**defaults, **arguments})


def built(model, features=3):
    model.build((None, None, features))
    return randomise(model)


def numbers(layer, inputs):
    return array(layer(inputs))


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


@EVERY_NORM
@pytest.mark.parametrize("gated", [True, False])
def test_a_block_is_its_parts(normalization, norm_first, gated):
    block = built(
        ResidualBlock(
            make_unit(),
            activation="tanh",
            gated=gated,
            normalization=normalization,
            norm_first=norm_first,
        )
    )
    inputs = sequences(6)
    outputs = numbers(block.norm, inputs) if norm_first else inputs
    outputs = np.tanh(numbers(block.unit, outputs))
    if gated:
        gate = numbers(block.gate_dense, outputs)
        outputs = numbers(block.value_dense, outputs) / (1 + np.exp(-gate))
    outputs = inputs + outputs
    if not norm_first:
        outputs = block.norm(outputs)
    close(block(inputs), outputs)


def test_a_norm_is_its_equation():
    def values(block):
        gamma = array(block.norm.gamma if kind != "rms" else block.norm.scale)
        beta = 0 if kind == "rms" else array(block.norm.beta)
        return gamma, beta

    inputs = sequences(6)
    centred = inputs - inputs.mean(axis=-1, keepdims=True)
    for kind, above, below in (
        ("layer", centred, inputs.var(axis=-1, keepdims=True)),
        ("rms", inputs, (inputs**2).mean(axis=-1, keepdims=True)),
    ):
        block = built(ResidualBlock(make_unit(), normalization=kind))
        gamma, beta = values(block)
        close(block.norm(inputs), above / np.sqrt(below + 1e-5) * gamma + beta)


def test_every_public_unit_has_a_name():
    public = vars(layers).values()
    units = [u for u in public if isinstance(u, type)]
    assert {*UNITS.values()} == {
        unit for unit in units if issubclass(unit, SequenceLayer)
    }


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_by_name_is_activated_and_gated_where_it_is_linear(name):
    block = ResidualBlock(name, unit_arguments={"units": 6})
    block.build((None, None, 6))
    is_linear = name in LINEAR
    assert type(block.unit) is UNITS[name]
    assert block.unit.is_linear == is_linear
    assert block.gated == is_linear
    expected = "gelu" if is_linear else "linear"
    assert block.activation is keras.activations.get(expected)
    own = len(block.weights) - len(block.unit.weights) - 2
    assert own == (4 if is_linear else 0)


def test_what_is_given_goes_before_what_follows_from_the_unit():
    block = ResidualBlock("rotrnn", activation="linear", gated=False)
    assert (block.activation, block.gated) == (keras.activations.linear, False)
    block = ResidualBlock("lssl", activation="relu", gated=True)
    assert (block.activation, block.gated) == (keras.activations.relu, True)
    # What a layer is depends on its own arguments too.
    assert not ResidualBlock(make_rotrnn(activation="tanh")).gated
    assert ResidualBlock(LDStack(depth=1)).gated
    assert ResidualBlock(LDStack(activation="linear")).gated
    both = keras.layers.Bidirectional(make_rotrnn(), merge_mode="sum")
    assert ResidualBlock(both).gated


def test_dropout_takes_the_same_features_of_the_unit_at_every_step():
    block = built(ResidualBlock(make_unit(), dropout=0.5, seed=1), features=16)
    inputs = sequences(6, features=16)
    plain = array(block(inputs)) - inputs
    dropped = array(block(inputs, training=True)) - inputs
    ratio = np.round(dropped / plain, 2)
    assert set(np.unique(ratio)) == {0, 2}
    assert (ratio == ratio[:, :1]).all()
    assert 0.2 < (ratio == 0).mean() < 0.8


def test_dropout_follows_the_activation_and_the_gate(monkeypatch):
    dropped = []
    for arguments, expected in (
        ({}, ["gelu", "gate"]),
        ({"gated": False}, ["gelu"]),
        ({"activation": "linear"}, ["gate"]),
        ({"activation": "linear", "gated": False}, ["unit"]),
    ):
        block = built(ResidualBlock("rotrnn", dropout=0.5, **arguments))
        dropped.clear()
        monkeypatch.setattr(
            block.dropout_layer,
            "call",
            lambda given, training: dropped.append(array(given)) or given,
        )
        inputs = sequences(6)
        block(inputs, training=True)
        unit = numbers(block.unit, numbers(block.norm, inputs))
        gelu = array(keras.activations.gelu(unit))
        values = {"unit": unit, "gelu": gelu}
        if block.gated:
            before = array(block.activation(unit))
            gate = array(keras.ops.sigmoid(block.gate_dense(before)))
            values["gate"] = numbers(block.value_dense, before) * gate
        assert len(dropped) == len(expected)
        for got, name in zip(dropped, expected):
            close(got, values[name])


@EVERY_NORM
def test_a_block_in_parts_and_steps_equals_the_whole(normalization, norm_first):
    block = built(
        ResidualBlock(
            make_rotrnn(), normalization=normalization, norm_first=norm_first
        )
    )

    def in_parts(given):
        (inputs,) = given
        states = block.get_initial_state(2)
        chunk, states = block.call_with_states(inputs[:, :4], states)
        steps = []
        for t in range(4, 7):
            step, states = block.step(inputs[:, t], states)
            steps.append(step)
        steps = keras.ops.stack(steps, axis=1)
        return block(inputs), keras.ops.concatenate([chunk, steps], axis=1)

    whole, parts = compiled(in_parts)([sequences(7)])
    close(parts, whole)


def test_masked_steps_do_not_enter_the_statistics_of_a_batch():
    inputs = sequences(6)
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], "bool")
    kept = inputs[mask]
    inputs[~mask] = np.nan
    block = built(ResidualBlock(make_rotrnn(), normalization="batch"))
    before = array(block.norm.moving_mean), array(block.norm.moving_variance)
    outputs = array(block(inputs, mask=mask, training=True))
    assert np.isfinite(outputs[mask]).all()
    close(block.norm.moving_mean, 0.9 * before[0] + 0.1 * kept.mean(axis=0))
    close(block.norm.moving_variance, 0.9 * before[1] + 0.1 * kept.var(axis=0))
    # Outside training they are read and not changed.
    moving = array(block.norm.moving_mean)
    block(inputs, mask=mask)
    close(block.norm.moving_mean, moving, 0)


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
        make_rotrnn,
        lambda: keras.layers.Bidirectional(make_unit(), merge_mode="sum"),
        lambda: keras.layers.Conv1D(3, 3, padding="causal"),
    ],
    ids=["rotrnn", "bidirectional", "convolution"],
)
def test_a_block_takes_other_layers_and_its_config_brings_them_back(unit):
    block = ResidualBlock(
        unit(), norm_first=False, normalization="rms", dropout=0.1, seed=3
    )
    inputs = sequences(6)
    expected = block(inputs)
    other = ResidualBlock.from_config(block.get_config())
    assert other.get_config() == block.get_config()
    other.build(inputs.shape)
    for weight, value in zip(other.weights, block.weights, strict=True):
        weight.assign(array(value))
    close(other(inputs), expected)


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
            ResidualBlock(make_rotrnn())(sequences(5), **arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"unit": 3}, "a layer or one of .* Received: unit=3"),
        ({"unit": "lstm"}, "a layer or one of .* Received: unit=lstm"),
        ({"unit": "orthogonal_rnn"}, "Received: units=None"),
        ({"unit_arguments": 3}, "or None. Received: unit_arguments=3"),
        (
            {"unit": LSSL(name="u"), "unit_arguments": {"dt_max": 0.5}},
            "Received: unit=u, unit_arguments={'dt_max': 0.5}",
        ),
        ({"normalization": "pre"}, "Received: normalization=pre"),
        ({"norm_first": "pre"}, "True or False. Received: norm_first=pre"),
        ({"gated": 2}, "True, False or None. Received: gated=2"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"epsilon": 0}, "Received: epsilon=0"),
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


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_is_its_parts(pooling, norm_first):
    model = built(make_model(pooling=pooling, norm_first=norm_first))
    inputs = sequences(6)
    outputs = model.encoder(inputs)
    for block in model.blocks:
        outputs = block(outputs)
    if norm_first:
        outputs = model.norm(outputs)
    outputs = array(outputs)
    if pooling:
        pools = {"mean": np.mean, "max": np.max}
        pool = pools.get(pooling, lambda given, axis: given[:, -1])
        outputs = pool(outputs, axis=1)
    got = array(model(inputs))
    close(got, model.head(outputs))
    close(got.sum(axis=-1), np.ones(got.shape[:-1]))
    assert (model.norm is None) == (not norm_first)
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
    model = built(make_model(unit="rotrnn"))
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
    model = built(make_model(unit=make_rotrnn()))
    units = [block.unit for block in model.blocks]
    assert [type(unit) for unit in units] == [RotRNN, RotRNN]
    one, other = (array(unit.input_kernel) for unit in units)
    assert np.abs(one - other).min() > 0


@pytest.mark.parametrize("name", UNITS)
def test_a_model_takes_every_unit_by_name(name):
    model = make_model(kind=SequenceRegressor, unit=name, pooling=None)
    assert array(model(sequences(3))).shape == (2, 3, 3)
    assert {type(block.unit) for block in model.blocks} == {UNITS[name]}
    assert {block.unit.name for block in model.blocks} == {name}


def test_arguments_of_a_unit_reach_every_copy():
    arguments = {"channels": 3, "measure": "legt", "trainable_timescale": False}
    model = make_model(unit_arguments=arguments)
    for block in model.blocks:
        config = block.unit.get_config()
        assert {name: config[name] for name in arguments} == arguments
    assert make_model(unit="lssl").blocks[0].unit.state_size == 64


def test_arguments_of_blocks_reach_every_block():
    arguments = {
        "gated": True,
        "dropout": 0.25,
        "normalization": "batch",
        "norm_first": False,
    }
    model = make_model(**arguments, block_activation="relu", seed=3)
    for index, block in enumerate(model.blocks):
        config = block.get_config()
        assert {name: config[name] for name in arguments} == arguments
        assert config["activation"] == "relu"
        assert config["seed"] == 3 + index


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
    model = SequenceRegressor.from_size(
        "large", 2, num_layers=1, unit_arguments={"state_size": 7}
    )
    assert len(model.blocks) == 1
    unit = model.blocks[0].unit
    assert (unit.state_size, unit.channels) == (7, 4)
    assert (model.units, model.output_dim) == (256, 2)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (SequenceClassifier, {}),
        (SequenceClassifier, {"activation": None, "pooling": "max"}),
        (SequenceRegressor, {"pooling": None, "norm_first": False}),
        (
            SequenceRegressor,
            {
                "unit": "rotrnn",
                "normalization": "batch",
                "pool_size": 2,
                "dropout": 0.1,
            },
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
    model = make_model(name="m", normalization="batch", gated=True)
    paths = [weight.path for weight in built(model).weights]
    assert {
        "m/encoder/kernel",
        "m/block_1/norm/gamma",
        "m/block_1/norm/moving_mean",
        "m/block_1/lssl/output_matrix",
        "m/block_1/value_dense/kernel",
        "m/block_1/gate_dense/bias",
        "m/norm/beta",
        "m/head/bias",
    } < set(paths)
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("float32", {"pooling": "last"}),
        ("mixed_bfloat16", {"pooling": "last"}),
        ("mixed_bfloat16", {"unit": "lru", "pool_size": 3, "pooling": "last"}),
    ],
)
def test_fit_learns_which_half_of_a_sequence_is_larger(policy, arguments):
    keras.utils.set_random_seed(0)
    model = make_model(
        outputs=2, units=8, dtype=policy, dropout=0.1, **arguments
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
    classifier = make_model(num_layers=1)
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
    arguments = {**model.blocks[0].unit.get_config(), "step_rescale": 2.0}
    other = make_model(unit=LSSL.from_config(arguments))
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
        make_model(unit="rotrnn").step_rescale = 2


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
        ({"outputs": 0}, "Received: num_classes=0"),
        (
            {"kind": SequenceRegressor, "outputs": 1.5},
            "Received: output_dim=1.5",
        ),
        ({"num_layers": 0}, "Received: num_layers=0"),
        ({"units": -1}, "Received: units=-1"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"pooling": "sum"}, "Received: pooling=sum"),
        ({"pool_size": 0}, "Received: pool_size=0"),
        ({"normalization": None}, "Received: normalization=None"),
        ({"norm_first": None}, "Received: norm_first=None"),
        ({"unit": "lstm"}, "Received: unit=lstm"),
        (
            {"unit": Recorder(name="u"), "unit_arguments": {"channels": 2}},
            "Received: unit=u, unit_arguments={'channels': 2}",
        ),
        ({"unit_arguments": {"state_size": 0}}, "Received: state_size=0"),
    ],
)
def test_a_wrong_argument_of_a_model_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        make_model(**arguments)


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor])
def test_a_size_that_is_none_of_the_papers_is_refused(kind):
    with pytest.raises(ValueError, match="Received: size=medium"):
        kind.from_size("medium", 3)
    with pytest.raises(ValueError, match="`unit` .* Received: unit=rotrnn"):
        kind.from_size("small", 3, unit="rotrnn")
    assert kind.from_size("small", 3, unit="lssl", num_layers=1).units == 128


# Averages between blocks.


def make_averaging(pooling="mean", num_layers=3, **arguments):
    """A model whose last block reads one average of four steps."""
    return built(
        make_model(
            unit=make_rotrnn(),
            pooling=pooling,
            num_layers=num_layers,
            pool_size=2,
            normalization="batch",
            **arguments,
        )
    )


def in_steps(model, inputs):
    states, outputs = model.get_initial_state(len(inputs)), []
    for t in range(inputs.shape[1]):
        output, states = model.step(inputs[:, t], states)
        outputs.append(array(output))
    return np.stack(outputs, axis=1), states


@pytest.mark.parametrize("pooling", POOLINGS)
def test_blocks_read_averages_of_the_steps_before(pooling):
    model = make_averaging(pooling)
    # What is left at the end fills no average.
    inputs = sequences(11)
    outputs = array(model.encoder(inputs))
    for index, block in enumerate(model.blocks):
        if index:
            kept = outputs[:, : len(outputs[0]) // 2 * 2]
            outputs = (kept[:, ::2] + kept[:, 1::2]) / 2
        outputs = numbers(block, outputs)
    outputs = numbers(model.norm, outputs)
    assert outputs.shape[1] == 2
    if pooling:
        pools = {"mean": np.mean, "max": np.max}
        pool = pools.get(pooling, lambda given, axis: given[:, -1])
        outputs = pool(outputs, axis=1)
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


@pytest.mark.parametrize("pooling", POOLINGS[:-1])
def test_steps_of_an_averaging_model_equal_the_sequence_so_far(pooling):
    model = make_averaging(pooling)
    inputs = sequences(11)
    got, _ = in_steps(model, inputs)
    for time in range(1, 12):
        close(got[:, time - 1], model(inputs[:, :time]))
    # One output for each average of four, and one before the first.
    assert len(np.unique(np.round(got[0, :, 0], 6))) == 3


@pytest.mark.parametrize("pooling", POOLINGS[:-1])
def test_parts_of_a_stream_that_averages_equal_its_steps(pooling):
    model = make_averaging(pooling)
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


def test_quantised_gates_are_quantised_when_loaded(tmp_path):
    block = ResidualBlock(make_rotrnn())
    model = keras.Sequential([keras.Input((None, 3)), block])
    for dense in block.dense_parts().values():
        dense.quantize("int8")
    inputs = sequences(5)
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    close(loaded.predict(inputs, verbose=0), expected)
    for dense in loaded.layers[0].dense_parts().values():
        assert dense.quantization_mode == "int8"
