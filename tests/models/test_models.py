"""The deep models that are made of residual blocks."""

import keras
import numpy as np
import pytest
from selection import COMPILING
from support.model_cases import POOLINGS
from support.model_cases import Recorder
from support.model_cases import built
from support.model_cases import make_model
from support.model_cases import make_rotrnn
from support.units import array
from support.units import close
from support.units import sequences

from keras_linrec import kernels
from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import Bidirectional
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor
from keras_linrec.models.units import UNITS


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


UNITS_THAT_READ_PADDING = {
    "both_ways": lambda: RotRNN(
        4, state_size=8, num_heads=2, bidirectional=True
    ),
    "of_keras": lambda: keras.layers.Bidirectional(
        keras.layers.SimpleRNN(4, return_sequences=True), merge_mode="sum"
    ),
}


@pytest.mark.parametrize(
    "make", UNITS_THAT_READ_PADDING.values(), ids=UNITS_THAT_READ_PADDING
)
def test_units_that_read_padding_are_given_the_mask(make):
    model = built(SequenceRegressor(2, 2, 4, unit=make(), pooling=None))
    inputs = sequences(6, batch=2)
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], "bool")
    outputs = array(model(inputs, mask=mask))
    for row in range(2):
        expected = model(inputs[row : row + 1, mask[row]])
        close(outputs[row : row + 1, mask[row]], expected)


@pytest.mark.parametrize("pooling", ["mean", None])
def test_a_model_moves_steps_once_for_all_blocks(pooling):
    model = built(make_model(pooling=pooling))
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], "bool")
    decisions = kernels.explain(
        lambda inputs: model(inputs, mask=mask), (2, 6, 3)
    )
    moves = [d for d in decisions if d.case.operation == "move_steps"]
    assert len(moves) == (1 if pooling else 2)


def test_a_masks_wrong_shape_is_named_by_a_model():
    model = built(make_model())
    with pytest.raises(ValueError, match="`mask` should have the shape"):
        model(sequences(6), mask=np.ones((2, 5), "bool"))


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


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_stream_without_the_states_of_every_block_is_refused(pooling):
    model = built(make_model(pooling=pooling))
    inputs, states = sequences(3), model.get_initial_state(batch_size=2)
    for wrong in (states[1:], [*states, states[0]]):
        with pytest.raises(ValueError, match=f"Received: {len(wrong)} in"):
            model.step(inputs[:, 0], wrong)
        with pytest.raises(ValueError, match=f"Received: {len(wrong)} in"):
            model.call_with_states(inputs, wrong)


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


def test_every_seed_makes_a_model():
    model = make_model(seed=2**31 - 1, unit_arguments={"seed": 2**31 - 1})
    assert [block.seed for block in model.blocks] == [2**31 - 1, 0]
    assert [block.unit.seed for block in model.blocks] == [2**31 - 1, 0]


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
        (SequenceClassifier, {"pool_size": (3,)}),
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


FROZEN = {
    "encoder and first block": lambda m: (m.encoder, m.blocks[0]),
    "first unit": lambda m: (m.blocks[0].unit,),
    "second unit and norms": lambda m: (
        m.norm,
        m.blocks[0].norm,
        m.blocks[1].unit,
    ),
    "a gate": lambda m: (m.blocks[1].gate_dense, m.head),
    "all": lambda m: (m,),
}


@pytest.mark.parametrize("copy", ["saved", "cloned"])
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_what_is_frozen_stays_frozen_in_a_copy(frozen, copy, tmp_path):
    model = built(make_model(unit="lru", gated=True))
    for part in frozen(model):
        part.trainable = False
    if copy == "saved":
        model.save(tmp_path / "model.keras")
        other = keras.saving.load_model(tmp_path / "model.keras")
    else:
        other = built(keras.models.clone_model(model))
    assert trained_of(other) == trained_of(model)
    assert other.get_config() == model.get_config()
    model.trainable = other.trainable = True
    assert trained_of(other) == trained_of(model)


def test_the_latest_word_on_a_gate_not_built_yet_counts():
    model = built(make_model(unit="lru"))
    model.trainable = False
    other = SequenceClassifier.from_config(model.get_config())
    other.trainable = True
    assert len(trained_of(built(other))) == len(model.weights)

    model.trainable = True
    model.encoder.trainable = False
    other = SequenceClassifier.from_config(model.get_config())
    other.blocks[0].trainable = False
    frozen = built(other).blocks[0]
    assert not any(weight.trainable for weight in frozen.weights)


@pytest.mark.parametrize("index", [0, 1])
def test_a_layer_within_a_unit_is_frozen_in_one_block_alone(index):
    unit = Bidirectional(LRU(4, state_size=3), merge_mode="sum")
    model = built(make_model(unit=unit))
    model.blocks[index].unit.forward_layer.trainable = False
    other = built(keras.models.clone_model(model))
    assert len(trained_of(other)) == len(model.trainable_weights)
    assert trained_of(other) == trained_of(model)


def test_a_wrapped_unit_that_is_frozen_freezes_no_other():
    unit = keras.layers.Bidirectional(
        LRU(2, return_sequences=True), name="both"
    )
    model = built(make_model(unit=unit))
    model.blocks[0].unit.trainable = False
    other = built(keras.models.clone_model(model))
    assert trained_of(other) == trained_of(model)


def test_a_model_made_frozen_is_frozen_within_another():
    inner = make_model(unit="lru", trainable=False)
    assert keras.Sequential([inner]).trainable_variables == []
    outer = keras.Sequential([keras.Input((6, 3)), inner])
    assert outer.trainable_variables == []


def trained_of(model):
    """The paths of the weights that are trained, without the model's name."""
    # Those of a frozen model's parts too.
    return [
        weight.path.partition("/")[2]
        for weight in model.weights
        if weight.trainable
    ]


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("copy", ["file", "clone", "rescaled"])
def test_low_rank_factors_are_kept_in_a_copy(copy, tmp_path):
    model = built(make_model(unit=LSSL(state_size=4), gated=True))
    model.encoder.enable_lora(2, lora_alpha=5)
    model.blocks[1].gate_dense.enable_lora(1)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    inputs, targets = sequences(6), array(model(sequences(6))) + 1
    model.fit(inputs, targets, verbose=0)
    if copy == "file":
        model.save(tmp_path / "model.keras")
        # A warning of variables that differ in number would be an error.
        other = keras.saving.load_model(tmp_path / "model.keras")
    elif copy == "clone":
        other = built(keras.models.clone_model(model))
    else:
        other = model.with_step_rescale(2)
    assert (other.encoder.lora_rank, other.encoder.lora_alpha) == (2, 5)
    assert other.blocks[1].gate_dense.lora_alpha == 1
    assert not other.blocks[0].gate_dense.lora_enabled
    assert len(other.trainable_weights) == len(model.trainable_weights)
    kernel = array(other.encoder._kernel)
    other.compile(keras.optimizers.Adam(0.01), "mse")
    other.fit(inputs, targets, verbose=0)
    np.testing.assert_array_equal(array(other.encoder._kernel), kernel)


def test_step_rescales_of_single_blocks_are_kept():
    model = built(make_model())
    model.blocks[1].unit.step_rescale = 2.0
    other = type(model).from_config(model.get_config())
    factors = [block.unit.step_rescale for block in other.blocks]
    assert factors == [1.0, 2.0]


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


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("float32", {"pooling": "last"}),
        pytest.param(
            "mixed_bfloat16", {"pooling": "last"}, marks=pytest.mark.rest
        ),
        ("mixed_bfloat16", {"unit": "lru", "pool_size": 3, "pooling": "last"}),
    ],
)
def test_fit_learns_which_half_of_a_sequence_is_larger(policy, arguments):
    keras.utils.set_random_seed(0)
    model = make_model(
        outputs=2, units=8, dtype=policy, dropout=0.1, **arguments
    )
    # 20 epochs of four steps. At a constant rate single epochs stand out, and
    # the last may be one.
    rate = keras.optimizers.schedules.CosineDecay(0.02, 80)
    model.compile(
        keras.optimizers.Adam(rate),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    inputs = sequences(12, batch=64, features=1)
    labels = (inputs[:, 6:].sum((1, 2)) > inputs[:, :6].sum((1, 2))) * 1
    history = model.fit(
        inputs, labels, batch_size=16, epochs=20, verbose=0
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
        ({"activation": "modrelu"}, "Received: activation=modrelu"),
        ({"block_activation": "modrelu"}, "Received: block_activation=modrelu"),
        ({"num_layers": 0}, "Received: num_layers=0"),
        ({"units": -1}, "Received: units=-1"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"pooling": "sum"}, "Received: pooling=sum"),
        ({"pool_size": 0}, "Received: pool_size=0"),
        ({"pool_size": (2, 2)}, r"Received: pool_size=\(2, 2\), num_layers=2"),
        ({"pool_size": [0]}, "Received: pool_size=0"),
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


def test_no_two_blocks_of_a_loaded_model_share_a_layer(tmp_path):
    """Keras marks parts that are serialized again while it loads a file."""
    unit = Bidirectional(LRU(4, state_size=3), merge_mode="sum")
    model = built(make_model(num_layers=3, unit=unit))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    for block in loaded.blocks:
        for weight in block.unit.weights:
            weight.assign(weight * 2)
    for block, other in zip(model.blocks, loaded.blocks):
        for weight, twice in zip(block.unit.weights, other.unit.weights):
            close(2 * array(weight), twice, 0)
