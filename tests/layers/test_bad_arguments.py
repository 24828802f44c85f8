"""Wrong values for every argument of every public class and function.

Each either works or raises a `ValueError` or `TypeError` that names the
argument: no value reaches code that does not expect it.
"""

import inspect
import json
import re
from functools import partial

import keras
import numpy as np
import pytest
from support.units import UNITS
from support.units import sequences

from keras_linrec import analysis
from keras_linrec import config
from keras_linrec import constraints
from keras_linrec import initializers
from keras_linrec import kernels
from keras_linrec import layers
from keras_linrec import models
from keras_linrec import nlp
from keras_linrec import ops
from keras_linrec import saving

# A value that works may deserve a warning.
pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore")]

# Of values that work JAX and TensorFlow compile a program each.
UNDER_PYTORCH = pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="the checks are the same code under every backend",
)

VALUES = (
    *(None, True, -1, 0, 1.5, float("nan"), float("inf"), -float("inf")),
    *("text", "", "3", b"x", [], (1, 2), ["a"], {}, object(), 1 + 2j, 10**30),
    *(np.int64(2), np.float32(0.5), np.bool_(True), np.array([0.5, 0.6])),
)

INPUTS = sequences(5)


def ones(*shape):
    return np.ones(shape, "float32")


def pair(*shape):
    return ones(*shape), ones(*shape)


class Public:
    """A public class or function, and arguments with which it works.

    Args:
        function: the class or function.
        call: what to do with the result. Defaults to `None`, nothing.
        others: the names under which an error may speak of an argument, by
            argument. A name of another argument stands for a limit that
            the two share.
        **arguments: those that work.
    """

    def __init__(self, function, call=None, others=None, **arguments):
        self.function, self.call = function, call
        self.others, self.arguments = others or {}, arguments

    def __call__(self, **changes):
        made = self.function(**{**self.arguments, **changes})
        if self.call is not None:
            self.call(made)
        if isinstance(made, keras.layers.Layer):
            # What a constructor takes, a file can hold.
            text = json.dumps(keras.saving.serialize_keras_object(made))
            keras.saving.deserialize_keras_object(json.loads(text))

    def with_argument(self, name, value):
        return self(**{name: value})

    def names(self):
        # Keras checks its own arguments, and has its own words for them.
        of_keras = {"name", "dtype", "head_dtype", "trainable"}
        of_keras |= {"kwargs", "options"}
        suffixes = ("initializer", "regularizer", "constraint")
        return [
            name
            for name in inspect.signature(self.function).parameters
            if name not in of_keras and not name.endswith(suffixes)
        ]


def of_layer(cls, **arguments):
    return Public(cls, lambda layer: layer(INPUTS), **arguments)


SMALL = {"unit": "rotrnn", "unit_arguments": {"state_size": 4}}
BACKBONE = partial(
    nlp.LinRecBackbone,
    unit_arguments={"state_size": 4},
    vocabulary_size=20,
    num_layers=1,
    hidden_dim=4,
    intermediate_dim=4,
)
PUBLIC = [
    *(of_layer(u.layer, **{"units": 4, **u.arguments}) for u in UNITS.values()),
    *(
        Public(cell, lambda cell: keras.layers.RNN(cell)(INPUTS), units=4)
        for cell in (
            layers.AntisymmetricRNNCell,
            layers.LipschitzRNNCell,
            layers.OrthogonalRNNCell,
        )
    ),
    of_layer(models.ResidualBlock, **SMALL),
    of_layer(models.RecurrentBlock, **SMALL),
    of_layer(
        models.SequenceClassifier,
        **{"num_classes": 2, "num_layers": 2, "units": 4, **SMALL},
    ),
    of_layer(
        models.SequenceRegressor,
        **{"output_dim": 2, "num_layers": 2, "units": 4, **SMALL},
    ),
    of_layer(nlp.GatedFeedforward, intermediate_dim=4),
    Public(BACKBONE.func, **BACKBONE.keywords),
    Public(initializers.DecayLog, lambda made: made((4,))),
    Public(initializers.FanInNormal, lambda made: made((4, 4))),
    Public(initializers.HiPPO, lambda made: made((4, 4))),
    Public(initializers.ReflectorPairs, lambda made: made((4, 2))),
    Public(constraints.Between, lambda made: made(ones(3, 4))),
    Public(constraints.UnitReflectors, lambda made: made(ones(4, 2))),
    Public(ops.linear_scan, decay=ones(3), inputs=INPUTS),
    Public(ops.complex_linear_scan, decay=pair(3), inputs=pair(2, 5, 3)),
    Public(
        ops.projected_scan,
        decay=pair(4),
        inputs=INPUTS,
        input_kernel=pair(3, 4),
        output_kernel=pair(4, 2),
    ),
    Public(
        ops.matrix_scan,
        queries=ones(2, 5, 2, 3),
        keys=ones(2, 5, 2, 3),
        values=ones(2, 5, 4, 6),
        decay=ones(2, 5, 4),
    ),
    Public(
        ops.nonlinear_scan,
        # The kernel decides on the number of units.
        others={"recurrent_kernel": "input_kernel", "gated": "input_kernel"},
        inputs=INPUTS,
        input_kernel=ones(3, 4),
        recurrent_kernel=np.eye(4, dtype="float32"),
    ),
    Public(ops.causal_convolution, inputs=INPUTS, response=ones(3, 1, 5)),
    Public(ops.canonical_input, eigenvalues=(np.arange(3.0), np.zeros(3))),
    Public(ops.leja_order, nodes=(np.arange(3.0), np.zeros(3))),
    Public(ops.reflection_product, reflectors=ones(4, 2)),
    Public(ops.rotation_matrix, matrix=ones(4, 4)),
    Public(ops.symmetric_skew, matrix=ones(4, 4), beta=0.5, gamma=0.1),
    Public(ops.unitary_matrix, reflectors=ones(4, 2), phases=ones(2)),
    Public(config.set_kernel, kernel=None),
    Public(kernels.explain, what="linear_scan", shape=(2, 5, 3)),
    Public(analysis.eigenvalue_bands, size=4, trials=1),
    Public(
        analysis.gradient_norms,
        layer=UNITS["orthogonal_rnn"](return_sequences=False),
        sequences=INPUTS,
        steps=[1, 5],
    ),
    Public(analysis.real_parts, matrix=np.eye(3)),
    Public(analysis.spectrum_bounds, matrix=np.eye(3), beta=0.5, gamma=0.1),
    Public(analysis.orthogonality_defect, layer_or_matrix=np.eye(3)),
    Public(
        analysis.stability_certificate,
        layer_or_matrices=(-np.eye(3), np.eye(3)),
    ),
    Public(analysis.StabilityMonitor),
    Public(saving.BackupAndRestore, backup_dir="backup"),
    Public(nlp.LinRecTextClassifier, backbone=BACKBONE(), num_classes=2),
    Public(nlp.LinRecCausalLM, backbone=BACKBONE()),
]


@pytest.fixture(autouse=True)
def kernel_afterwards():
    yield
    config.set_kernel(None)


def refusals(call, values, *names):
    """The values for which an error names none of these arguments."""
    spoken = "|".join(names)
    wrong = []
    for value in values:
        try:
            call(value)
        except (ValueError, TypeError) as error:
            if not re.search(rf"`({spoken})|\b({spoken})(\.\w+)?=", str(error)):
                wrong.append((value, error))
        except Exception as error:
            wrong.append((value, error))
    return wrong


@UNDER_PYTORCH
@pytest.mark.parametrize("public", PUBLIC, ids=lambda p: p.function.__name__)
def test_wrong_arguments_are_named(public):
    public()
    for name in public.names():
        other = public.others.get(name, name)
        wrong = refusals(
            partial(public.with_argument, name), VALUES, name, other
        )
        assert not wrong, (name, wrong)


# Sequences of different lengths, and arrays of other things than numbers.
RAGGED = np.empty(2, object)
RAGGED[:] = [ones(5, 3), ones(4, 3)]
BAD_TENSORS = (
    RAGGED,
    [ones(5, 3), ones(4, 3)],
    [[[1.0, 2.0]], [[1.0]]],
    np.full((2, 5, 3), "a"),
    np.full((2, 5, 3), 1j),
    ones(3, 5),
    ones(2, 4),
    ones(2, 5, 3, 1),
)


@UNDER_PYTORCH
@pytest.mark.parametrize("name", UNITS)
def test_wrong_tensors_of_a_call_are_named(name):
    unit = UNITS[name]
    layer = unit(return_state=True)
    layer(INPUTS)
    values = [value for value in (*VALUES, *BAD_TENSORS) if value is not None]

    def call(tensor, value):
        layer(**{"sequences": INPUTS, tensor: value})

    tensors = ["mask", "reset_mask", "initial_state"]
    tensors += ["time_deltas"] if unit.takes_time_deltas else []
    for tensor in tensors:
        wrong = refusals(partial(call, tensor), values, tensor)
        assert not wrong, (tensor, wrong)
    # Keras itself speaks of the number of axes.
    assert not refusals(layer, values, "sequences", "ndim")
    given = {"inputs": INPUTS[:, 0], "states": layer.get_initial_state(2)}

    def step(name, value):
        layer.step(**{**given, name: value})

    for name in given:
        assert not refusals(partial(step, name), values, name)


def ragged_of_the_backend():
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        return torch.nested.nested_tensor([torch.ones(5, 3), torch.ones(4, 3)])
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.RaggedTensor.from_row_splits(ones(9, 3), [0, 5, 9])
    return RAGGED


def test_ragged_sequences_are_refused_with_advice():
    ragged = ragged_of_the_backend()
    layer = UNITS["lru"]()
    model = models.SequenceClassifier(2, num_layers=1, units=4, unit="lru")
    block = models.ResidualBlock("lru")
    both = layers.Bidirectional(UNITS["lru"]())
    for called in (layer, model, block, both, layer.step):
        for given in (ragged, RAGGED, [ones(5, 3), ones(4, 3)]):
            arguments = (None,) if called == layer.step else ()
            with pytest.raises(ValueError, match="pad them .* pass a `mask`"):
                called(given, *arguments)


def test_a_mask_in_lists_is_refused_with_advice():
    with pytest.raises(ValueError, match="pad them .* mask of type list"):
        UNITS["lru"]()(INPUTS, mask=[[True] * 5] * 2)


def test_bounds_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="Received: minimum=2.0, maximum=1.0"):
        constraints.Between(minimum=2.0, maximum=1.0)
    kept = constraints.Between(minimum=2.0, maximum=2.0)(ones(3))
    assert keras.ops.convert_to_numpy(kept).tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", ["int32", "bool", "float16", "float64"])
def test_numbers_of_any_kind_are_sequences(dtype):
    layer = UNITS["rotrnn"]()
    given = (INPUTS > 0).astype(dtype)
    expected = keras.ops.convert_to_numpy(layer(given.astype("float32")))
    got = keras.ops.convert_to_numpy(layer(given))
    assert np.abs(got - expected).max() < 1e-6


@pytest.mark.parametrize("name", ["lssl", "lipschitz_rnn"])
@pytest.mark.parametrize("wrong", [-1e-3, float("nan"), float("inf")])
def test_wrong_lengths_of_steps_are_refused_where_they_count(name, wrong):
    layer = UNITS[name]()
    gaps = ones(2, 5)
    layer(INPUTS, time_deltas=gaps)
    gaps[1, 3] = wrong
    message = f"`time_deltas` should be finite.* Received: time_deltas={wrong}"
    for given in (gaps, keras.ops.convert_to_tensor(gaps)):
        with pytest.raises(ValueError, match=message):
            layer(INPUTS, time_deltas=given)
    states = layer.get_initial_state(2)
    with pytest.raises(ValueError, match=message):
        layer.call_with_states(INPUTS, states, time_deltas=gaps)
    with pytest.raises(ValueError, match=message):
        layer.step(INPUTS[:, 0], states, time_deltas=gaps[:, 3])
    # What a masked step holds does not matter.
    mask = np.ones((2, 5), bool)
    mask[1, 3] = False
    outputs = keras.ops.convert_to_numpy(
        layer(INPUTS, time_deltas=gaps, mask=mask)
    )
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize("wrong", [-1.0, 0.0, float("nan"), float("inf"), "2"])
def test_a_wrong_rescaling_of_steps_is_refused(wrong):
    layer = UNITS["lssl"]()
    message = "`step_rescale` should be a number in .* Received: step_rescale="
    with pytest.raises(ValueError, match=message):
        layer(INPUTS, step_rescale=wrong)
    with pytest.raises(ValueError, match=message):
        layer.step_rescale = wrong
    if not isinstance(wrong, str):
        with pytest.raises(ValueError, match=message):
            layer(INPUTS, step_rescale=np.float32(wrong))
        with pytest.raises(ValueError, match="or a scalar tensor. Received"):
            layer(INPUTS, step_rescale=np.full(3, wrong, "float32"))


@pytest.mark.parametrize(
    "beta", [np.array([0.5, 0.6]), [0.5, 0.6], (0.5, np.float32(0.6))]
)
def test_pairs_may_be_arrays_and_survive_a_file(beta):
    layer = layers.LipschitzRNN(4, beta=beta)
    assert layer.beta == pytest.approx((0.5, 0.6))
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert again.beta == pytest.approx(layer.beta)
    assert isinstance(again.beta[1], float)
    with pytest.raises(ValueError, match="`beta` .* or a pair"):
        layers.LipschitzRNN(4, beta=np.array([0.5, 0.6, 0.7]))


def test_numpy_scalars_are_numbers():
    layer = layers.RotRNN(
        np.int64(4),
        state_size=np.int32(8),
        num_heads=np.int64(2),
        gamma_max=np.float32(0.9),
        dropout=np.float64(0.1),
        return_state=np.bool_(True),
        seed=np.int64(3),
    )
    outputs, _ = layer(INPUTS, training=True)
    assert tuple(outputs.shape) == (2, 5, 4)
    json.dumps(keras.saving.serialize_keras_object(layer))


MODEL = partial(keras.Sequential, [keras.Input((2,)), keras.layers.Dense(2)])
TASK = {"model": MODEL, "inputs": ones(4, 2), "labels": [0, 1, 0, 1]}
TASK["loss"] = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@UNDER_PYTORCH
@pytest.mark.parametrize(
    ("function", "name", "values"),
    [
        (analysis.pgd, "radius", ["a", 0, np.nan]),
        (analysis.pgd, "step_size", [None, "a", -1]),
        (analysis.deepfool, "overshoot", [None, "a", -1, np.nan]),
        (analysis.salt_and_pepper_response, "low", ["a", np.nan]),
        (analysis.salt_and_pepper_response, "seed", ["a", -1, 1.5]),
    ],
)
def test_wrong_arguments_of_an_analysis_are_named(function, name, values):
    task = {**TASK, "model": MODEL()}
    if function is analysis.salt_and_pepper_response:
        task["levels"] = [0.1]
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}`"):
            function(**task, **{name: value})


@UNDER_PYTORCH
@pytest.mark.parametrize("name", ["tolerance", "seed"])
def test_wrong_arguments_of_a_hessian_are_named(name):
    model = MODEL()
    hessian = analysis.Hessian(
        model, TASK["inputs"], TASK["labels"], loss=TASK["loss"]
    )
    with pytest.raises(ValueError, match=f"`{name}`.* Received: {name}=-1"):
        hessian.extreme_eigenvalues(**{name: -1})


@UNDER_PYTORCH
@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (nlp.LinRecCausalLMPreprocessor, {"sequence_length": 0}),
        (nlp.LinRecTextClassifierPreprocessor, {"sequence_length": -3}),
        (nlp.LinRecTextClassifierPreprocessor, {"truncate": "x"}),
    ],
)
def test_wrong_arguments_of_a_preprocessor_are_named(make, arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"Received: {name}={value}"):
        make(nlp.LinRecByteTokenizer(), **arguments)


def test_a_step_takes_no_unknown_argument():
    block = models.ResidualBlock(**SMALL)
    block.build((2, None, 3))
    states = block.get_initial_state(2)
    with pytest.raises(TypeError, match="no call argument `other`"):
        block.step(INPUTS[:, 0], states, other=1)
    with pytest.raises(ValueError, match="Received: states of type NoneType"):
        block.step(INPUTS[:, 0], None)


def test_sizes_of_a_unit_are_a_dictionary():
    with pytest.raises(ValueError, match="Received: unit_arguments=.1."):
        models.SequenceClassifier.from_size("small", 3, unit_arguments=[1])
