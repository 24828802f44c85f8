"""Activations, poolings, normalisations and models of float64, in float64.

`conformance/test_float64.py` has the units, with the activations that they
have by default.
"""

import keras
import numpy as np
import pytest
from scipy import special
from selection import COMPILING
from support.autodiff import BACKEND
from support.autodiff import gradient
from support.autodiff import relative_error
from support.conformance_cases import float64
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec import activations
from keras_linrec import double_precision
from keras_linrec import models
from keras_linrec.constraints import Between
from keras_linrec.layers import LSSL
from keras_linrec.layers import LipschitzRNN
from keras_linrec.models import pooling
from keras_linrec.models.normalization import make_norm
from keras_linrec.models.normalization import normalize
from keras_linrec.models.step_averages import average_steps


def softplus(x):
    return np.logaddexp(0, x)


def hard_sigmoid(x):
    return np.clip(x / 6 + 0.5, 0, 1)


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


# By name, as Keras documents them.
DEFINITIONS = {
    "celu": elu,
    "elu": elu,
    "exponential": np.exp,
    "gelu": lambda x: x * special.ndtr(x),
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": lambda x: x * hard_sigmoid(x),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "linear": lambda x: x,
    "log_sigmoid": lambda x: -softplus(-x),
    "log_softmax": lambda x: special.log_softmax(x, axis=-1),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: (
        1.0507009873554804934193349852946
        * np.where(x > 0, x, 1.6732632423543772848170429916717 * np.expm1(x))
    ),
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "softmax": lambda x: special.softmax(x, axis=-1),
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sparse_plus": lambda x: np.where(
        x <= -1, 0, np.where(x < 1, (x + 1) ** 2 / 4, x)
    ),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
    "tanh": np.tanh,
    "tanh_shrink": lambda x: x - np.tanh(x),
}
# Those that cannot stand alone: they halve the features, or need arguments.
# Keras 3.15's sparsemax is no projection: of (1, 0.5) it is (0.25, 0).
NOT_ALONE = {"glu", "sparsemax", "threshold"}
# Keras 3.15 computes normalisations of float64 in float32 on JAX and PyTorch,
# and products too on PyTorch.
KERAS_LOSES = BACKEND in ("jax", "torch")
OF_KERAS = 1e-6 if KERAS_LOSES else 1e-12


def double(values):
    return keras.ops.convert_to_tensor(values, "float64")


def assert_float64(got, expected, tolerance=1e-12):
    assert keras.backend.standardize_dtype(got.dtype) == "float64"
    assert relative_error(array(got), expected) < tolerance


def test_every_activation_has_a_definition():
    names = {
        name
        for name, value in vars(keras.activations).items()
        if callable(value) and not name.startswith("_")
    }
    names -= {"deserialize", "get", "serialize", *NOT_ALONE}
    same = {"swish": "silu", "hard_swish": "hard_silu"}
    assert {same.get(name, name) for name in names} == set(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_activation_keeps_float64(name):
    numbers = np.linspace(-30, 30, 4001)
    with float64():
        activation = activations.get(name)
        got = double_precision.activate(activation, double(numbers))
        assert_float64(got, DEFINITIONS[name](numbers), 1e-14)


def test_the_softplus_has_the_slope_one_half_at_zero():
    with float64():

        def total(tensors):
            softplus = keras.activations.softplus
            return keras.ops.sum(double_precision.activate(softplus, *tensors))

        (slopes,) = gradient(total)([double([0.0, 40.0, -40.0])])
        assert_float64(slopes, np.array([0.5, 1.0, special.expit(-40.0)]))


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in UNITS for form in UNITS[name].forms[1:]],
    ids=str,
)
def test_a_unit_of_any_form_keeps_float64(name, form):
    assert_unit_keeps_float64(name, form, form)


@pytest.mark.parametrize("activation", ["gelu", "leaky_relu", "tanh"])
@pytest.mark.parametrize(
    "name", ["lssl", "rotrnn", "ldstack", "orthogonal_rnn"]
)
def test_a_unit_of_any_activation_keeps_float64(name, activation):
    given = {"activation": DEFINITIONS[activation]}
    assert_unit_keeps_float64(name, {"activation": activation}, {}, **given)


def assert_unit_keeps_float64(name, arguments, form, **given):
    inputs = sequences(9).astype("float64")
    with float64():
        layer = UNITS[name](**{"dtype": "float64", **arguments})
        layer(inputs)
        randomise(layer)
        got = layer(inputs)
        weights = weights_of(layer)
    expected, *_ = UNITS[name].defined(form, weights, inputs, **given)
    # Some forms invert a basis.
    assert_float64(got, expected, 1e-11)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", pooling.POOLINGS)
def test_a_pooling_keeps_float64(kind, masked):
    outputs = sequences(9).astype("float64")
    mask = np.arange(9) < np.array([[4], [9]])
    rows = [row[:count] for row, count in zip(outputs, (4, 9))]
    if not masked:
        rows, mask = outputs, None
    expected = {
        "mean": lambda row: row.mean(axis=0),
        "max": lambda row: row.max(axis=0),
        "last": lambda row: row[-1],
    }[kind]
    with float64():
        if masked:
            mask = keras.ops.convert_to_tensor(mask)
        got = pooling.pool(kind, double(outputs), mask)
        assert_float64(got, np.stack([expected(row) for row in rows]))


@pytest.mark.parametrize("kind", pooling.POOLINGS)
def test_a_pooling_of_a_stream_keeps_float64(kind):
    outputs = sequences(9).astype("float64")
    counts = np.arange(1, 10)[None, :, None]
    expected = {
        "mean": np.cumsum(outputs, axis=1) / counts,
        "max": np.maximum.accumulate(outputs, axis=1),
        "last": outputs,
    }[kind]
    with float64():
        states = pooling.initial_states(kind, 2, 3, "float64")
        states = pooling.pool_step(kind, double(outputs[:, 0]), states)
        states = pooling.pool_step(kind, double(outputs[:, 1]), states)
        assert_float64(states[0], expected[:, 1])
        got, _ = pooling.pool_part(kind, double(outputs[:, 2:]), states)
        assert_float64(got, expected[:, 2:])


def test_averages_of_steps_keep_float64():
    outputs = sequences(9).astype("float64")
    with float64():
        got, _ = average_steps(double(outputs), 4)
        expected = outputs[:, :8].reshape(2, 2, 4, 3).mean(axis=2)
        assert_float64(got, expected)


def normalized(normalization, x, axis=-1):
    mean = 0.0 if normalization == "rms" else x.mean(axis, keepdims=True)
    variance = np.square(x - mean).mean(axis, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5)


@pytest.mark.parametrize("normalization", ["batch", "layer", "rms"])
def test_a_normalization_keeps_float64(normalization):
    inputs = sequences(9).astype("float64")
    axis = (0, 1) if normalization == "batch" else -1
    with float64():
        norm = make_norm(normalization, epsilon=1e-5, dtype="float64")
        got = normalize(norm, double(inputs), training=True)
        expected = normalized(normalization, inputs, axis)
        assert_float64(got, expected, OF_KERAS)


@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_a_model_keeps_float64_but_for_what_its_parts_lose(normalization):
    inputs = sequences(9).astype("float64")
    with float64():
        model = models.SequenceClassifier(
            3,
            num_layers=1,
            units=4,
            unit_arguments={"state_size": 6},
            normalization=normalization,
            dtype="float64",
        )
        model(inputs)
        for part in (model.encoder, model.blocks[0].unit, model.head):
            randomise(part)
        got = model(inputs)
        encoder, head = map(weights_of, (model.encoder, model.head))
        unit = weights_of(model.blocks[0].unit)
    x = inputs @ encoder["kernel"] + encoder["bias"]
    outputs, _ = UNITS["lssl"].definition(unit, normalized(normalization, x))
    pooled = normalized(normalization, x + outputs).mean(axis=1)
    logits = pooled @ head["kernel"] + head["bias"]
    assert_float64(got, special.softmax(logits, axis=-1), OF_KERAS)


@pytest.mark.skipif(not KERAS_LOSES, reason="Keras loses nothing here")
def test_what_keras_loses_it_still_loses():
    # Once it does not, `OF_KERAS` and docs/limits can change.
    inputs, kernel = np.random.default_rng(0).normal(size=(2, 40, 40))
    with float64():
        got = keras.ops.matmul(double(inputs), double(kernel))
        norm = make_norm("layer", epsilon=1e-5, dtype="float64")
        normed = norm(double(inputs))
    if BACKEND == "torch":
        assert 1e-8 < relative_error(array(got), inputs @ kernel) < 1e-6
    error = relative_error(array(normed), normalized("layer", inputs))
    assert 1e-8 < error < 1e-6


def test_numbers_given_as_floats_keep_float64():
    """TensorFlow takes a float for a float32 unless it is told otherwise."""
    with float64():
        layer = LSSL(1, state_size=4, step_rescale=0.1, dtype="float64")
        inputs = sequences(5, features=1).astype("float64")
        given = array(layer(inputs, step_rescale=0.3))
        tensor = double(0.3)
        assert (given == array(layer(inputs, step_rescale=tensor))).all()
        assert float(array(layer._step_rescale_variable)) == 0.1
        unit = LipschitzRNN(
            2, trainable_step_size=True, step_size=0.03, dtype="float64"
        )
        unit.build((None, None, 1))
        assert float(array(unit.log_step_size)) == np.log(0.03)
        kept = Between(minimum=0.7, maximum=0.8)(double([0.1, 0.75, 1.0]))
        assert array(kept).tolist() == [0.7, 0.75, 0.8]
