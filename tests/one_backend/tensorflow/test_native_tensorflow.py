"""The native kernels as TensorFlow's operations."""

import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.autodiff import relative_error
from support.needs_native import require_native

import keras_linrec
from keras_linrec import kernels
from keras_linrec import layers
from keras_linrec import ops
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import resolver
from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.operations import projected_scan as projection

native = require_native()

BATCH, TIME, CHANNELS, FEATURES, UNITS = 2, 7, 3, 4, 5


def uniform(seed, *shape):
    generator = np.random.default_rng([seed, *shape])
    return tf.constant(generator.uniform(-0.7, 0.7, shape), "float32")


def arguments(per_step):
    """A flat list: decay, inputs, two kernels, state; all but inputs pairs."""
    decay = (BATCH, TIME, CHANNELS) if per_step else (CHANNELS,)
    shapes = (decay, (FEATURES, CHANNELS), (CHANNELS, UNITS), (BATCH, CHANNELS))
    parts = [uniform(i, *s) for s in shapes for i in range(2)]
    return [*parts[:2], uniform(0, BATCH, TIME, FEATURES), *parts[2:]]


def loss_of(projected_scan, reverse):
    def loss(tensors):
        decay, inputs, *rest = tuple(tensors[:2]), tensors[2]
        rest = [tuple(tensors[i : i + 2]) for i in (3, 5, 7)]
        outputs, (real, imag) = projected_scan(decay, inputs, *rest, reverse)
        return tf.reduce_sum(outputs**3) + tf.reduce_sum(real * imag)

    return loss


def gradients(function):
    def run(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(tensors)
        return tape.gradient(value, tensors)

    return run


def second_gradients(function):
    def squares(tensors):
        slopes = gradients(function)(tensors)
        return tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])

    return gradients(squares)


def plain(*given):
    return projection.projected_scan(registry.load("sequential").scan, *given)


@pytest.mark.parametrize("order", [gradients, second_gradients])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_gradients_are_those_of_the_plain_form(mode, per_step, order):
    given = arguments(per_step)
    run = order(loss_of(native.projected_scan, per_step))
    if mode != "eager":
        # With unknown batch and length.
        unknown = [None, None, None]
        signature = [
            tf.TensorSpec(unknown[: t.shape.rank - 1] + [t.shape[-1]], t.dtype)
            if t.shape.rank == 3
            else tf.TensorSpec(t.shape, t.dtype)
            for t in given[:-2]
        ] + [tf.TensorSpec([None, CHANNELS], t.dtype) for t in given[-2:]]
        run = tf.function(
            run, input_signature=[signature], jit_compile=mode == "xla"
        )
    got = run(given)
    expected = order(loss_of(plain, per_step))(given)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_argument_that_is_reused_is_not_overwritten(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def run(decay, inputs):
        # An intermediate result, which the outputs may overwrite.
        doubled = 2.0 * inputs
        state = (tf.zeros((BATCH, CHANNELS)),)
        outputs, _ = native.scan((decay,), (doubled,), state)
        return outputs[0], doubled

    inputs = uniform(0, BATCH, TIME, CHANNELS)
    _, doubled = run(tf.fill([CHANNELS], 0.5), inputs)
    assert relative_error(doubled, 2.0 * inputs) == 0


def systems():
    """Arguments of an impulse response: 2 features, 2 channels, 3 states."""
    p, d, q, b = (1.5 + uniform(seed, 3) for seed in range(4))
    bands = 1.5 + uniform(0, 3, 3)
    return [-p, d, q, bands, b, 1.0 + uniform(0, 2), uniform(0, 2, 2, 3)]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("order", [gradients, second_gradients])
@pytest.mark.rest
def test_gradients_of_the_impulse_response_in_graphs(jit_compile, order):
    run = order(
        lambda given: tf.reduce_sum(
            native.impulse_response(*given, 6, 0.5) ** 2
        )
    )
    got = tf.function(run, jit_compile=jit_compile)(systems())
    for one, other in zip(got, run(systems()), strict=True):
        assert relative_error(one, other) < 1e-5


def test_the_impulse_response_has_a_shape_before_it_runs():
    @tf.function
    def run(*given):
        response = native.impulse_response(*given, 6, 0.5)
        assert response.shape == (2, 2, 6)
        return response

    *given, output_matrix = systems()
    assert run(*given, output_matrix).shape == (2, 2, 6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`output_matrix`"):
        native.impulse_response(*given, output_matrix[..., 1:], 6, 0.5)


def test_xla_calls_the_native_code():
    @tf.function(jit_compile=True)
    def run(decay, inputs):
        return native.scan((decay,), (inputs,), (inputs[:, 0],))

    program = run.experimental_get_compiler_ir(
        tf.ones(CHANNELS), tf.ones((BATCH, TIME, CHANNELS))
    )
    assert "keras_linrec" in program(stage="hlo")


@pytest.mark.parametrize(
    "unit, arguments",
    [
        ("LSSL", {"state_size": 4}),
        ("LinearDynamicalSystem", {"return_sequences": False}),
    ],
)
def test_a_matrix_has_no_gradient_for_every_row_of_the_batch(unit, arguments):
    # As `@` gives a sequence times a matrix: a product a row, and their sum.
    layer = getattr(layers, unit)(4, **arguments)
    inputs = uniform(0, BATCH, TIME, FEATURES)
    layer(inputs)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    graph = step.get_concrete_function(inputs).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "MatMul" in kinds
    assert not [kind for kind in kinds if kind.startswith("BatchMatMul")]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_empty_batch_has_empty_outputs_and_no_gradient(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def run(decay, inputs, state):
        with tf.GradientTape() as tape:
            tape.watch(decay)
            outputs, _ = native.scan((decay,), (inputs,), (state,))
            total = tf.reduce_sum(outputs[0])
        return outputs[0], tape.gradient(total, decay)

    outputs, slope = run(
        tf.ones(CHANNELS),
        tf.ones((0, TIME, CHANNELS)),
        tf.ones((0, CHANNELS)),
    )
    assert outputs.shape == (0, TIME, CHANNELS)
    assert not slope.numpy().any()


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received: "):
        native.scan(
            (tf.ones(CHANNELS + 1),),
            (tf.ones((BATCH, TIME, CHANNELS)),),
            (tf.ones((BATCH, CHANNELS)),),
        )


@pytest.mark.rest
def test_an_exported_model_runs_where_the_library_is_not(tmp_path):
    inputs = keras.Input((None, FEATURES))
    outputs = keras_linrec.layers.RotRNN(2, state_size=4, num_heads=2)(inputs)
    model = keras.Model(inputs, outputs)
    sequences = uniform(0, BATCH, TIME, FEATURES).numpy()
    np.save(tmp_path / "sequences.npy", sequences)
    model.export(tmp_path / "model", verbose=False)
    code = (
        "import numpy, sys, tensorflow as tf\n"
        "model = tf.saved_model.load('model')\n"
        "outputs = model.serve(numpy.load('sequences.npy'))\n"
        "numpy.save('outputs.npy', outputs)\n"
        "assert 'keras_linrec' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300
    )
    got = np.load(tmp_path / "outputs.npy")
    assert relative_error(got, model.predict(sequences, verbose=0)) < 1e-5


@pytest.mark.rest
def test_xla_knows_operations_that_are_loaded_late():
    """TensorFlow collects its XLA kernels once, before its first operation."""
    code = (
        "import tensorflow as tf\n"
        "assert float(tf.constant(1.0) + 1.0) == 2.0\n"
        "from keras_linrec import ops\n"
        "run = tf.function(ops.linear_scan, jit_compile=True)\n"
        "outputs, _ = run(tf.constant([0.5]), tf.ones((1, 5, 1)))\n"
        "print(float(outputs[0, 1, 0]))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert answer.stdout.split() == ["1.5"], answer.stderr[-2000:]


@pytest.mark.rest
def test_a_nonlinear_scan_checks_sizes_that_were_not_known():
    unknown = tf.TensorSpec((None, None, 2)), tf.TensorSpec((None, None))

    @tf.function(input_signature=unknown)
    def run(inputs, step_size):
        return keras_linrec.ops.nonlinear_scan(
            inputs,
            tf.ones((2, 3)),
            tf.eye(3),
            solver="euler",
            step_size=step_size,
        )[1]

    assert run(tf.ones((2, 9, 2)), tf.ones((2, 9))).shape == (2, 3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`step_size`.*time=9"
    ):
        run(tf.ones((2, 9, 2)), tf.ones((2, 3)))


@pytest.mark.rest
def test_what_is_placed_on_the_cpu_runs_there_beside_a_gpu(fresh):
    real = tf.config.get_visible_devices
    fresh.setattr(
        tf.config,
        "get_visible_devices",
        lambda kind=None: ["a GPU"] if kind == "GPU" else real(kind),
    )
    # Without the CUDA core, whose kernels nvcc would compile for this.
    fresh.setattr(cuda, "is_here", lambda: False)
    chosen = {}

    def scan(place):
        @tf.function(autograph=False)
        def run(inputs):
            with tf.device(place):
                decay = tf.fill([3], 0.5)
                return keras_linrec.ops.linear_scan(decay, inputs)[0]

        with resolver._listening() as decisions:
            outputs = run(tf.ones((1, 3, 3)))
        chosen[place] = decisions[0].kernel
        return outputs

    assert kernels.available()["native"]
    assert scan("/CPU:0")[0, :, 0].numpy().tolist() == [1.0, 1.5, 1.75]
    scan("/GPU:0")
    assert chosen == {"/CPU:0": "native", "/GPU:0": registry.portable()}
    described = backends.current().describe
    there = SimpleNamespace(device="/job:localhost/device:GPU:0")
    assert described(there)["platform"] == "cuda"
    assert described(tf.ones(1))["platform"] == "cpu"


@pytest.mark.parametrize("time", [1, 6])
@pytest.mark.rest
def test_second_derivatives_of_a_final_state_within_one_block(time):
    """At which XLA aborted."""
    generator = np.random.default_rng(0)
    decay = tf.constant([0.5, 0.9])
    given = [
        tf.constant(generator.normal(size=shape).astype("float32"))
        for shape in ((2, time, 3), (3, 2), (2, 4))
    ]

    def penalty(inputs, into, out):
        with tf.GradientTape() as outer:
            outer.watch((inputs, into))
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                _, state = ops.projected_scan(
                    decay, inputs, into, out, keep_all=False
                )
                loss = tf.reduce_sum(state**3)
            slope = inner.gradient(loss, inputs)
            norm = tf.reduce_sum(slope**2)
        return outer.gradient(norm, (inputs, into))

    compiled = tf.function(penalty, jit_compile=True)
    for got, expected in zip(compiled(*given), penalty(*given)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
