"""Whole models one step at a time, and what runs without Keras."""

import json
import os
import subprocess
import sys
from functools import partial

import keras
import numpy as np
import pytest
from support import formats
from support.autodiff import compiled
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec import export_step
from keras_linrec.layers import LRU
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import RotRNN
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier

layers = keras.layers


def every_kind():
    """A functional model with what can stream, and two outputs."""
    signal = keras.Input((None, 2), name="signal")
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    hidden = layers.Concatenate()([signal, layers.Embedding(5, 1)(tokens)])
    for name, make in UNITS.items():
        unit = make(3, dropout=0.5, name=name)
        hidden = hidden + unit(layers.LayerNormalization()(hidden))
        randomise(unit)
    hidden = layers.SpatialDropout1D(0.5)(keras.ops.tanh(hidden))
    hidden = layers.BatchNormalization()(
        layers.LSTM(3, return_sequences=True)(hidden)
    )
    hidden = ResidualBlock(RotRNN(state_size=4, num_heads=2))(hidden)
    inner = keras.Sequential(
        [layers.Dense(4, "gelu"), layers.GRU(3, return_sequences=True)]
    )
    hidden = layers.Add()([hidden, inner(hidden)])
    pooled = layers.Concatenate()(
        [
            layers.GlobalAveragePooling1D()(hidden),
            layers.GlobalMaxPooling1D()(hidden),
            RotRNN(4, state_size=4, num_heads=2, return_sequences=False)(
                hidden
            ),
            hidden[:, -1],
        ]
    )
    outputs = {
        "each": layers.TimeDistributed(layers.Dense(2))(hidden),
        "whole": layers.Dense(3)(pooled),
    }
    return keras.Model([signal, tokens], outputs)


def streamed(step, *inputs, batch=2):
    """The outputs of every step, stacked, and the states after the last."""
    run = compiled(lambda parts: step(parts))
    states, outputs = step.initial_states(batch), []
    count = len(step.outputs) - len(states)
    for now in zip(*(np.moveaxis(part, 1, 0) for part in inputs)):
        results = run([*now, *states])
        outputs.append([array(part) for part in results[:count]])
        states = results[count:]
    return [np.stack(parts, 1) for parts in zip(*outputs)], states


# JAX compiles it for half a minute.
@pytest.mark.weekly("jax")
def test_a_model_of_every_layer_streams_and_is_saved(tmp_path):
    model = every_kind()
    tokens = np.arange(18).reshape(2, 9).astype("int32") % 5
    inputs = [sequences(9, features=2), tokens]
    step = export_step(model)
    (each, whole), _ = streamed(step, *inputs)
    expected = model.predict(inputs, verbose=0)
    assert np.abs(each - expected["each"]).max() < 1e-4
    assert np.abs(whole[:, -1] - expected["whole"]).max() < 1e-4
    # And after five steps it said what the model says of five.
    part = model.predict([part[:, :5] for part in inputs], verbose=0)
    assert np.abs(whole[:, 4] - part["whole"]).max() < 1e-4

    step.save(tmp_path / "step.keras")
    loaded = keras.models.load_model(tmp_path / "step.keras")
    (_, again), _ = streamed(loaded, *inputs)
    assert np.abs(again - whole).max() < 1e-6


def small(*parts, features=3):
    return keras.Sequential([keras.Input((None, features)), *parts])


def test_weights_are_shared_and_not_copied():
    model = small(layers.Dense(4), UNITS["rotrnn"](), layers.Dense(2))
    step = export_step(model)
    assert {id(w) for w in step.weights} == {id(w) for w in model.weights}
    model.layers[-1].bias.assign([5.0, 5.0])
    (outputs,), _ = streamed(step, sequences(1))
    assert np.abs(outputs - array(model(sequences(1)))).max() < 1e-5


def test_a_layer_called_twice_has_states_for_each_call():
    inputs = keras.Input((None, 3))
    unit = UNITS["rotrnn"](3)
    model = keras.Model(inputs, unit(unit(inputs)))
    step = export_step(model)
    names = [state.name for state in step.inputs[1:]]
    assert names == [f"{unit.name}_state_0", f"{unit.name}_state_1"]
    (outputs,), _ = streamed(step, sequences(6))
    assert np.abs(outputs - array(model(sequences(6)))).max() < 1e-4


@pytest.mark.parametrize(
    ("unit", "pooling", "pool_size"),
    [
        ("lssl", "mean", 1),
        ("rotrnn", "last", 1),
        ("rotrnn", "max", 3),
        ("rotrnn", None, 1),
    ],
)
def test_a_classifier_streams(unit, pooling, pool_size):
    model = SequenceClassifier(
        3,
        num_layers=2,
        units=4,
        unit=unit,
        normalization="batch",
        pool_size=pool_size,
        pooling=pooling,
    )
    expected = array(model(sequences(7)))
    (outputs,), _ = streamed(export_step(model), sequences(7))
    last = expected if pooling else expected[:, -1]
    assert np.abs(outputs[:, -1] - last).max() < 1e-5
    # Within another model too.
    around = small(model)
    (outputs,), _ = streamed(export_step(around), sequences(7))
    assert np.abs(outputs[:, -1] - last).max() < 1e-5


def test_the_lengths_of_steps_are_passed_on():
    signal = keras.Input((None, 3))
    lengths = keras.Input((None,), name="lengths")
    unit = UNITS["lssl"]()
    model = keras.Model([signal, lengths], unit(signal, time_deltas=lengths))
    inputs = [sequences(6), np.linspace(0.5, 2, 12, dtype="float32")]
    inputs[1] = inputs[1].reshape(2, 6)
    (outputs,), _ = streamed(export_step(model), *inputs)
    expected = model.predict(inputs, verbose=0)
    assert np.abs(outputs - expected).max() < 1e-4


def test_a_stateful_model_streams_and_loads_for_any_batch(tmp_path):
    unit = UNITS["rotrnn"](stateful=True)
    model = keras.Sequential([keras.Input((None, 3), batch_size=1), unit])
    step = export_step(model)
    step.save(tmp_path / "step.keras")
    loaded = keras.models.load_model(tmp_path / "step.keras")
    (outputs,), states = streamed(loaded, sequences(5))
    expected = array(model(sequences(5)[:1]))
    assert np.abs(outputs[:1] - expected).max() < 1e-5
    assert states[0].shape == (2, 10)
    assert np.abs(array(unit.states[0])).max() > 0


def residual(sequence):
    return layers.Add()([sequence, layers.GlobalAveragePooling1D()(sequence)])


REFUSED = {
    "backwards": (lambda: UNITS["lssl"](go_backwards=True), "from its end"),
    "both_ways": (lambda: UNITS["rotrnn"](bidirectional=True), "bidirectional"),
    "bidirectional": (
        lambda: layers.Bidirectional(UNITS["rotrnn"]()),
        "reads the sequence from its end",
    ),
    "a_block_both_ways": (
        lambda: ResidualBlock(
            RotRNN(3, state_size=4, num_heads=2, bidirectional=True)
        ),
        "bidirectional",
    ),
    "a_block_of_what_does_not_stream": (
        lambda: ResidualBlock(layers.Dense(3)),
        "has no method `step`",
    ),
    "masking": (layers.Masking, "drop_masks=True"),
    "convolution": (lambda: layers.Conv1D(4, 2), "it mixes time steps"),
    "strides": (lambda: layers.Conv1D(4, 1, 2), "it mixes time steps"),
    "activation_over_time": (
        lambda: layers.Activation(lambda x: keras.ops.cumsum(x, axis=1)),
        "it mixes time steps",
    ),
    "norm_over_time": (
        lambda: layers.LayerNormalization(axis=1),
        "it mixes time steps",
    ),
    "average_kept": (
        lambda: layers.GlobalAveragePooling1D(keepdims=True),
        "keepdims=True",
    ),
    "shift": (lambda: layers.ZeroPadding1D(1), "not known to treat"),
    "attention": (
        lambda: lambda x: layers.Attention()([x, x]),
        "not known to treat",
    ),
    "mean": (
        lambda: lambda x: keras.ops.mean(x, 1, keepdims=True),
        "not known to treat",
    ),
    "with_and_without_time": (
        lambda: residual,
        "with a time axis and tensors without one",
    ),
}


def masked_signals(generator):
    inputs = keras.Input((None, 3))
    hidden = layers.Masking()(inputs)
    hidden = RotRNN(4, state_size=4, num_heads=2)(hidden)
    hidden = layers.Dense(4, activation="gelu")(hidden)
    pooled = layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, layers.Dense(2)(pooled))
    return model, generator.standard_normal((2, 6, 3)).astype("float32")


def masked_tokens(generator):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            RotRNN(4, state_size=4, num_heads=2, return_sequences=False),
        ]
    )
    return model, generator.integers(1, 9, (2, 6)).astype("int32")


@pytest.mark.parametrize("make", [masked_signals, masked_tokens])
def test_a_masked_model_streams_without_its_masks(make, tmp_path):
    model, sequences = make(np.random.default_rng(0))
    export_step(model, drop_masks=True).save(tmp_path / "step.keras")
    step = keras.models.load_model(tmp_path / "step.keras")
    states = step.initial_states(2)
    for t in range(6):
        outputs, *states = step([sequences[:, t], *states])
    np.testing.assert_allclose(
        array(outputs), array(model(sequences)), atol=1e-5
    )


def test_an_output_that_is_a_mask_is_refused():
    inputs = keras.Input((None, 3))
    hidden = RotRNN(4, state_size=4, num_heads=2)(inputs)
    mask = keras.ops.not_equal(inputs, 0.0)
    as_feature = layers.Concatenate()([hidden, keras.ops.cast(mask, "float32")])
    for output in (mask, as_feature):
        model = keras.Model(inputs, [hidden, output])
        with pytest.raises(ValueError, match="a mask"):
            export_step(model, drop_masks=True)


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_stream_is_named(make, reason):
    inputs = keras.Input((6, 3))
    hidden = RotRNN(3, state_size=4, num_heads=2)(make()(inputs))
    with pytest.raises(ValueError, match=reason):
        export_step(keras.Model(inputs, hidden))


def inner(signal):
    return keras.Model(signal, UNITS["lru"](4)(signal))


CLASSIFIER = partial(
    *(SequenceClassifier, 3, 1, 4, "rotrnn"), unit_arguments={"state_size": 4}
)
LENGTHS = np.ones((1, 5), "float32")
# Calls that take more than a sequence, and what is refused.
CALLS = {
    "a mask": (lambda x, mask, _: CLASSIFIER()(x, mask), "`mask`"),
    "a state": (lambda x, _, h: UNITS["lipschitz_rnn"](4)(x, h), "`initial_st"),
    "two": (lambda x, mask, _: UNITS["lru"](4)(x, None, mask), "`mask`"),
    "a state of Keras": (
        lambda x, _, h: layers.GRU(4)(x, h),
        "`initial_state`",
    ),
    "a pooling's": (
        lambda x, mask, _: layers.GlobalAveragePooling1D()(x, mask),
        "`mask`",
    ),
    "by name": (
        lambda x, mask, _: layers.GlobalAveragePooling1D()(x, mask=mask),
        "`mask`",
    ),
    "a model's": (lambda x, mask, _: inner(x)(x, mask=mask), "`mask`"),
    "a sequential model's": (
        lambda x, mask, _: keras.Sequential([UNITS["lru"](4)])(x, mask=mask),
        "`mask`",
    ),
    "lengths": (
        lambda x, *_: UNITS["lssl"](4)(x, time_deltas=LENGTHS),
        "`time_deltas` have no time axis",
    ),
}


@pytest.mark.filterwarnings("ignore:.*destroy the mask information")
@pytest.mark.parametrize(("call", "reason"), CALLS.values(), ids=CALLS)
def test_what_a_call_takes_beside_its_inputs_is_named(call, reason):
    shapes = {(5, 3): "float32", (5,): "bool", (4,): "float32"}
    inputs = [
        keras.Input(shape, batch_size=1, dtype=dtype)
        for shape, dtype in shapes.items()
    ]
    model = keras.Model(inputs, call(*inputs))
    with pytest.raises(ValueError, match=f"one step at a time.*{reason}"):
        export_step(model)


@pytest.mark.parametrize("kind", [list, dict])
def test_a_nested_model_may_have_several_inputs(kind):
    one = keras.Input((None, 3), name="one")
    other = keras.Input((None, 2), name="other")
    inside = layers.Concatenate()([UNITS["lru"](4)(one), other])
    given = [one, other] if kind is list else {"one": one, "other": other}
    nested = keras.Model(given, inside)
    signal = keras.Input((None, 3))
    parts = [signal, layers.Dense(2)(signal)]
    if kind is dict:
        parts = dict(zip(("one", "other"), parts))
    model = keras.Model(signal, nested(parts))
    randomise(model)
    (outputs,), _ = streamed(export_step(model), sequences(4))
    assert np.abs(outputs - array(model(sequences(4)))).max() < 1e-5


def test_a_mask_by_position_is_left_out_too():
    tokens = keras.Input((None,), dtype="int32")
    embedding = layers.Embedding(9, 3, mask_zero=True)
    mask = embedding.compute_mask(tokens)
    hidden = layers.GRU(4, return_sequences=True)(embedding(tokens), None, mask)
    step = export_step(keras.Model(tokens, hidden), drop_masks=True)
    assert len(step.initial_states(1)) == 1


def test_an_activation_of_the_users_streams():
    model = small(layers.Activation(lambda x: x * x), UNITS["rotrnn"]())
    (outputs,), _ = streamed(export_step(model), sequences(4))
    assert np.abs(outputs - array(model(sequences(4)))).max() < 1e-5


class Centred:
    """An object that reads the other steps."""

    def __call__(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Activation(partial(keras.activations.softmax, axis=1)),
        layers.Dense(4, activation=Centred()),
        layers.Dense(4, activation=layers.Softmax(axis=1)),
        # Of six steps, and of no other number.
        layers.Dense(4, activation=lambda x: keras.ops.reshape(x, (-1, 6, 4))),
    ],
    ids=["partial", "object", "layer", "fixed"],
)
def test_a_callable_that_reads_other_steps_is_refused(layer):
    inputs = keras.Input((6, 3))
    model = keras.Model(inputs, layer(UNITS["rotrnn"]()(inputs)))
    with pytest.raises(ValueError, match="mixes time steps, or its activation"):
        export_step(model)


def test_an_activation_of_a_number_of_features_streams():
    activation = partial(keras.ops.multiply, np.ones(5, "float32"))
    model = small(layers.Dense(5, activation), UNITS["rotrnn"]())
    (outputs,), _ = streamed(export_step(model), sequences(4))
    assert np.abs(outputs - array(model(sequences(4)))).max() < 1e-5


def branch(name):
    parts = [
        keras.Input((None, 3)),
        layers.Dense(4, name="dense"),
        RotRNN(4, state_size=4, num_heads=2, name="rnn"),
        layers.GlobalAveragePooling1D(name="pool"),
        layers.Dense(3, name="head"),
    ]
    return keras.Sequential(parts, name=name)


def test_nested_models_may_have_layers_of_the_same_names(tmp_path):
    inputs = keras.Input((None, 3))
    outputs = layers.Add()([branch("a")(inputs), branch("b")(inputs)])
    model = keras.Model(inputs, outputs)
    step = export_step(model)
    (outputs,), _ = streamed(step, sequences(4))
    np.testing.assert_allclose(
        outputs[:, -1], array(model(sequences(4))), atol=1e-5
    )
    step.save(tmp_path / "step.keras")
    loaded = keras.models.load_model(tmp_path / "step.keras")
    np.testing.assert_allclose(
        streamed(loaded, sequences(4))[0][0], outputs, atol=1e-6
    )


def test_one_pooling_may_have_inputs_of_several_widths():
    inputs, pool = keras.Input((None, 3)), layers.GlobalMaxPooling1D()
    hidden = RotRNN(4, state_size=4, num_heads=2)(inputs)
    outputs = layers.Concatenate()([pool(inputs), pool(hidden)])
    model = keras.Model(inputs, outputs)
    (outputs,), _ = streamed(export_step(model), sequences(4))
    np.testing.assert_allclose(
        outputs[:, -1], array(model(sequences(4))), atol=1e-5
    )


def test_a_copy_that_does_not_know_its_states_says_so():
    step = export_step(small(UNITS["rotrnn"]()))
    copy = keras.models.clone_model(step)
    with pytest.raises(ValueError, match="made in another way"):
        copy.initial_states(2)
    assert len(step.initial_states(2)) == 1


@pytest.mark.parametrize("given", ["Dense", [layers.Dense(2)], 3])
def test_what_is_no_class_is_refused(given):
    with pytest.raises(ValueError, match="`position_wise` should be a class"):
        export_step(small(UNITS["rotrnn"]()), position_wise=given)


class Doubled(layers.Layer):
    """A layer of a user."""

    def call(self, inputs):
        return inputs * 2


def test_a_users_layer_streams_where_it_is_vouched_for():
    model = small(Doubled(), UNITS["rotrnn"]())
    with pytest.raises(ValueError, match="name its class in `position_wise`"):
        export_step(model)
    step = export_step(model, position_wise=Doubled)
    (outputs,), _ = streamed(step, sequences(4))
    assert np.abs(outputs - array(model(sequences(4)))).max() < 1e-5


def test_a_model_without_states_and_one_that_is_not_built_are_refused():
    with pytest.raises(ValueError, match="should have a layer with states"):
        export_step(small(layers.Dense(2)))
    with pytest.raises(ValueError, match="built=False"):
        export_step(keras.Sequential([UNITS["rotrnn"]()]))
    with pytest.raises(ValueError, match="built=False"):
        export_step(SequenceClassifier(2))


def test_a_loss_that_no_file_could_hold_is_no_hindrance():
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, UNITS["rotrnn"]()(inputs))
    model.compile(loss=lambda labels, outputs: outputs)
    (outputs,), _ = streamed(export_step(model), sequences(4))
    assert np.abs(outputs - array(model(sequences(4)))).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lssl", "rotrnn"])
def test_100000_steps_equal_the_whole(name):
    model = small(UNITS[name](8))
    inputs = sequences(100_000, batch=1)
    expected = model.predict(inputs, verbose=0)
    (outputs,), _ = streamed(export_step(model), inputs, batch=1)
    scale = np.abs(expected).max()
    assert np.abs(outputs - expected).max() < 1e-4 * scale


# What runs where there is no Keras and none of this package. A program prints
# the largest differences between what was expected and what it gets.
SAVED_MODEL = """
import sys, json, numpy as np
sys.modules["keras"] = sys.modules["keras_linrec"] = None
import tensorflow as tf
cases = np.load(sys.argv[1] + "/cases.npz")
names = sorted({name.split(":")[0] for name in cases})
differences = {}
for name in names:
    file, *_ = name.split(" ")
    model = tf.saved_model.load(sys.argv[1] + "/" + file)
    parts = {k.split(":")[1]: v for k, v in cases.items()
             if k.startswith(name + ":")}
    given = [tf.constant(v) for k, v in sorted(parts.items()) if k[0] == "i"]
    got = model.serve(given if file == "step" else given[0])
    got = got if file == "step" else [got]
    differences[name] = max(
        float(np.abs(one.numpy() - parts[f"o{n}"]).max())
        for n, one in enumerate(got))
print(json.dumps(differences))
"""
PROGRAM = """
import sys, json, numpy as np, torch
cases = np.load(sys.argv[1] + "/cases.npz")
names = sorted({name.split(":")[0] for name in cases})
differences = {}
for name in names:
    file, *_ = name.split(" ")
    program = torch.export.load(sys.argv[1] + "/" + file + ".pt2").module()
    parts = {k.split(":")[1]: v for k, v in cases.items()
             if k.startswith(name + ":")}
    given = [torch.tensor(v) for k, v in sorted(parts.items()) if k[0] == "i"]
    got = program(given if file == "step" else given[0])
    got = got if file == "step" else [got]
    differences[name] = max(
        float(np.abs(one.detach().numpy() - parts[f"o{n}"]).max())
        for n, one in enumerate(got))
assert "keras" not in sys.modules and "keras_linrec" not in sys.modules
print(json.dumps(differences))
"""
ONNX = """
import sys, json, numpy as np, onnxruntime
cases = np.load(sys.argv[1] + "/cases.npz")
names = sorted({name.split(":")[0] for name in cases})
differences = {}
for name in names:
    file, *_ = name.split(" ")
    session = onnxruntime.InferenceSession(sys.argv[1] + "/" + file + ".onnx")
    parts = {k.split(":")[1]: v for k, v in cases.items()
             if k.startswith(name + ":")}
    given = [v for k, v in sorted(parts.items()) if k[0] == "i"]
    names = [part.name for part in session.get_inputs()]
    got = session.run(None, dict(zip(names, given)))
    differences[name] = max(
        float(np.abs(one - parts[f"o{n}"]).max()) for n, one in enumerate(got))
print(json.dumps(differences))
"""

TORCH = keras.backend.backend() == "torch"


def exported_model(time):
    return keras.Sequential(
        [
            keras.Input((time, 3), name="signal"),
            UNITS["lssl"](),
            LipschitzRNN(2, return_sequences=True),
        ]
    )


def cases_of(model, sizes):
    """Inputs and outputs of a model and of its one step, by name."""
    step = export_step(model)
    cases = {}
    generator = np.random.default_rng(0)
    for batch, time in sizes:
        inputs = sequences(time, batch=batch)
        cases[f"whole {batch} {time}:i0"] = inputs
        cases[f"whole {batch} {time}:o0"] = model.predict(inputs, verbose=0)
        given = [
            generator.standard_normal((batch, *part.shape[1:]))
            for part in step.inputs
        ]
        given = [part.astype("float32") for part in given]
        for n, part in enumerate(given):
            cases[f"step {batch}:i{n}"] = part
        for n, part in enumerate(step.predict(given, verbose=0)):
            cases[f"step {batch}:o{n}"] = part
    return step, cases


def run_plainly(program, folder, cases, tolerance=1e-5):
    np.savez(folder / "cases.npz", **cases)
    result = subprocess.run(
        [sys.executable, "-c", program, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    differences = json.loads(result.stdout.strip().splitlines()[-1])
    assert set(differences) == {name.split(":")[0] for name in cases}
    assert max(differences.values()) < tolerance, differences


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(TORCH, reason="Keras exports no SavedModel from PyTorch")
def test_a_saved_model_runs_at_any_size_without_keras(tmp_path):
    model = exported_model(None)
    step, cases = cases_of(model, [(1, 1), (2, 7), (3, 70)])
    model.export(tmp_path / "whole", verbose=False)
    step.export(tmp_path / "step", verbose=False)
    run_plainly(SAVED_MODEL, tmp_path, cases)


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_was_not_called_exports_for_any_batch(tmp_path):
    model = small(UNITS["lru"]())
    step = export_step(model)
    given = [np.ones((3, *part.shape[1:]), "float32") for part in step.inputs]
    path = tmp_path / ("step.pt2" if TORCH else "step")
    name = "torch" if TORCH else "tf_saved_model"
    step.export(path, format=name, verbose=False)
    if TORCH:
        import torch

        program = torch.export.load(path).module()
        outputs = program([torch.tensor(part) for part in given])
    else:
        import tensorflow

        program = tensorflow.saved_model.load(path)
        outputs = program.serve([tensorflow.constant(part) for part in given])
    for got, expected in zip(outputs, step(given), strict=True):
        np.testing.assert_allclose(
            array(got) if TORCH else got.numpy(), array(expected), atol=1e-6
        )


def run_whole(program, folder, model, sizes):
    """Compare a file with its model, by the model's largest output."""
    cases, largest = {}, 1.0
    for batch, time in sizes:
        inputs = sequences(time, batch=batch)
        outputs = model.predict(inputs, verbose=0)
        cases[f"whole {batch} {time}:i0"] = inputs
        cases[f"whole {batch} {time}:o0"] = outputs
        largest = max(largest, np.abs(outputs).max())
    # The norm of Mamba2 makes the rounding of a small state 50 times as large.
    run_plainly(program, folder, cases, 3e-5 * largest)


class OfAUser(LipschitzRNN):
    """A unit whose class is not of the package."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="only PyTorch makes ONNX of it")
@pytest.mark.rest
def test_an_onnx_file_of_a_users_class_takes_any_batch_and_time(tmp_path):
    layer = OfAUser(2, return_sequences=True)
    model = keras.Sequential([keras.Input((None, 3), name="signal"), layer])
    model(sequences(4))
    model.export(tmp_path / "whole.onnx", format="onnx", verbose=False)
    run_whole(ONNX, tmp_path, model, [(1, 1), (2, 7)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="only PyTorch makes ONNX of it")
def test_onnx_files_of_other_models_are_left_to_keras(tmp_path, monkeypatch):
    from keras_linrec.kernels.torch import onnx_files

    def refuse(*args, **kwargs):
        raise AssertionError("the exporter of this package")

    monkeypatch.setattr(onnx_files, "_export", refuse)
    model = small(UNITS["lipschitz_rnn"]())
    model(sequences(4))
    with pytest.raises(AssertionError, match="of this package"):
        model.export(tmp_path / "own.onnx", format="onnx", verbose=False)
    plain = small(layers.Dense(2))
    plain(sequences(4))
    plain.export(tmp_path / "plain.onnx", format="onnx", verbose=False)
    assert (tmp_path / "plain.onnx").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rest
@pytest.mark.parametrize("sizes", [(None, None), (1, 5)])
def test_a_model_that_was_never_called_is_written(sizes, tmp_path):
    model = keras.Sequential([LipschitzRNN(4)])
    signature = [keras.InputSpec(shape=(*sizes, 3), dtype="float32")]
    is_onnx = keras.backend.backend() != "tensorflow"
    path = tmp_path / ("model.onnx" if is_onnx else "model")
    model.export(
        str(path),
        "onnx" if is_onnx else "tf_saved_model",
        verbose=False,
        input_signature=signature,
    )
    run = formats.run_onnx if is_onnx else formats.run_saved_model
    given = sequences(5, batch=1)
    (found,) = run(path, [given])
    assert np.allclose(found, array(model(given)), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="jax2onnx cannot trace it"
)
@pytest.mark.parametrize(
    "first",
    [
        lambda: [keras.Input((None, 3)), layers.Masking()],
        lambda: [keras.Input((None,)), layers.Embedding(5, 3, mask_zero=True)],
    ],
)
def test_an_onnx_file_of_a_model_with_masks_is_refused(first, tmp_path):
    model = keras.Sequential([*first(), LRU(2)])
    reason = r"masked steps are moved\. Load the model under PyTorch"
    with pytest.raises(RuntimeError, match=reason):
        model.export(tmp_path / "model.onnx", "onnx", verbose=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="only PyTorch makes ONNX of it")
@pytest.mark.rest
def test_an_onnx_file_of_fixed_sizes_has_neither_writes_nor_notes(tmp_path):
    import onnx

    model = keras.Sequential([keras.Input((8, 3), batch_size=1), LRU(2)])
    model.export(tmp_path / "model.onnx", "onnx", verbose=False)
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert len(nodes) > 20
    assert not any("Scatter" in node.op_type for node in nodes)
    assert not any(node.metadata_props for node in nodes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="a format of PyTorch")
@pytest.mark.rest
def test_an_exported_program_runs_without_keras(tmp_path):
    import torch

    model = exported_model(7)
    step, cases = cases_of(model, [(1, 7), (3, 7)])
    batch = {0: torch.export.Dim("batch")}
    model.export(
        tmp_path / "whole.pt2",
        format="torch",
        dynamic_shapes=batch,
        verbose=False,
    )
    step.export(tmp_path / "step.pt2", format="torch", verbose=False)
    run_plainly(PROGRAM, tmp_path, cases)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="only PyTorch makes ONNX of it")
@pytest.mark.rest
def test_an_onnx_file_runs_without_keras(tmp_path):
    model = exported_model(7)
    _, cases = cases_of(model, [(3, 7)])
    # It has not been called.
    step = export_step(model)
    step.export(tmp_path / "step.onnx", format="onnx", verbose=False)
    model.export(
        tmp_path / "whole.onnx",
        format="onnx",
        verbose=False,
        input_signature=[
            keras.layers.InputSpec(shape=(3, 7, 3), dtype="float32")
        ],
    )
    run_plainly(ONNX, tmp_path, cases)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(TORCH, reason="PyTorch writes it")
@pytest.mark.weekly
def test_a_converters_error_says_what_works(tmp_path):
    model = small(UNITS["lssl"]())
    reason = "(?s)Load the model under PyTorch .* converter's error: "
    with pytest.raises(RuntimeError, match=reason):
        model.export(str(tmp_path / "model.xml"), format="openvino")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not TORCH, reason="a format of PyTorch")
def test_a_length_that_older_versions_would_fix_is_refused(
    tmp_path, monkeypatch
):
    import torch

    monkeypatch.setitem(sys.modules, "torch._higher_order_ops.scan", None)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC}
    with pytest.raises(RuntimeError, match="loops for one number of steps"):
        small(UNITS["lipschitz_rnn"]()).export(
            tmp_path / "model.pt2", format="torch", dynamic_shapes=sizes
        )
