"""Residual blocks."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.model_cases import EVERY_NORM
from support.model_cases import LINEAR
from support.model_cases import Recorder
from support.model_cases import built
from support.model_cases import make_rotrnn
from support.model_cases import make_unit
from support.model_cases import numbers
from support.units import array
from support.units import close
from support.units import sequences

from keras_linrec import layers
from keras_linrec.layers import LSSL
from keras_linrec.layers import LDStack
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceRegressor
from keras_linrec.models.units import UNITS


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
    # A part of blocks, which remembers a few steps.
    assert {*UNITS.values(), layers.CausalConvolution} == {
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


def test_a_model_that_is_linear_from_end_to_end_warns():
    def model(unit, normalization, block_activation="linear"):
        return SequenceRegressor(
            1,
            num_layers=1,
            units=4,
            unit=unit,
            normalization=normalization,
            block_activation=block_activation,
            gated=False,
        )

    with pytest.warns(UserWarning, match="is linear from its inputs to its"):
        linear = built(model("lru", "batch"))
    inputs = sequences(6)
    once, twice = linear(inputs), linear(2 * inputs)
    close(twice - once, once - linear(0 * inputs))
    # None of these warns.
    model("lru", "layer")
    model("lru", "batch", block_activation="gelu")
    model("lssl", "batch")


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


class InParts(keras.layers.Layer):
    """Reads whole sequences as a part of a stream."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.supports_masking = True

    def call(self, sequences, mask=None):
        states = self.inner.get_initial_state(2)
        return self.inner.call_with_states(sequences, states, mask)[0]


@pytest.mark.parametrize("wrapped", [lambda block: block, InParts])
@EVERY_NORM
def test_a_nan_at_a_masked_step_reaches_no_weight(
    normalization, norm_first, wrapped
):
    block = built(
        ResidualBlock(
            make_rotrnn(), normalization=normalization, norm_first=norm_first
        )
    )
    inputs = keras.Input(batch_shape=(2, 6, 3))
    mask = keras.Input(batch_shape=(2, 6), dtype="bool")
    outputs = wrapped(block)(inputs, mask=mask)
    outputs = keras.layers.GlobalAveragePooling1D()(outputs, mask=mask)
    model = keras.Model([inputs, mask], outputs)
    model.compile("sgd", "mse", jit_compile=False)
    before, after = model.get_weights(), []
    counts = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]], "bool")
    for filling in (0, np.nan):
        model.set_weights(before)
        filled = np.where(counts[:, :, None], sequences(6), filling)
        model.train_on_batch([filled, counts], np.zeros((2, 3)))
        after.append(model.get_weights())
    for one, other in zip(*after, strict=True):
        close(one, other)


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
        ({"activation": "modrelu"}, "Received: activation=modrelu"),
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


def test_quantised_gates_are_quantised_when_loaded(tmp_path):
    block = ResidualBlock(make_rotrnn())
    model = keras.Sequential([keras.Input((None, 3)), block])
    for dense in block._dense_parts().values():
        dense.quantize("int8")
    inputs = sequences(5)
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    close(loaded.predict(inputs, verbose=0), expected)
    for dense in loaded.layers[0]._dense_parts().values():
        assert dense.quantization_mode == "int8"
