"""The CUDA core as TensorFlow's operations, in graphs, eagerly and in XLA.

The stand-in's GPU is the CPU, on which these operations run for these tests
only. What a GPU alone can show is at the end.
"""

import ctypes
from functools import cache
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from definitions import scan as definition
from support.autodiff import relative_error

if keras.backend.backend() != "tensorflow":
    pytest.skip("here TensorFlow calls the CUDA core", allow_module_level=True)

import tensorflow as tf
from support.cuda_stand_in import stand_in as stand_in
from support.nonlinear_cases import random_operands
from tensorflow.python.framework import kernels as registered

import keras_linrec
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import resolver
from keras_linrec.kernels import sections
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import cuda as native_cuda
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import with_last_state
from keras_linrec.kernels.tensorflow.loop import loop
from keras_linrec.ops.structured.hippo import hippo

pytestmark = pytest.mark.rest

GPU = {"platform": "cuda"}
NAMES = [
    f"KerasLinrecCuda{name}{backward}"
    for name in ("Scan", "NonlinearScan", "ImpulseResponse")
    for backward in ("", "Backward")
]


def on_gpu(monkeypatch):
    """Calls in this test are placed on a GPU, as far as Python decides it."""
    monkeypatch.setattr(backends.current(), "describe", lambda tensor: GPU)


@cache
def allow_on_cpu():
    library = ctypes.CDLL(str(build.library("tensorflow")))
    library.keras_linrec_tensorflow_cuda_on_cpu()


@pytest.fixture
def kernels(stand_in, monkeypatch):
    """The kernels of TensorFlow, whose calls go to the CUDA core."""
    from keras_linrec.kernels.tensorflow import native

    allow_on_cpu()
    native_cuda.core()
    on_gpu(monkeypatch)
    return SimpleNamespace(**native.FUNCTIONS)


def in_mode(mode, function):
    """A function of tensors, eagerly, in a graph or in an XLA program."""
    if mode == "eager":
        return function
    return tf.function(function, autograph=False, jit_compile=mode == "xla")


modes = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


def with_gradients(function, cotangents):
    """A function of a list; its results, then gradients of the arguments."""

    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = function(*tensors)
        gradients = tape.gradient(results, tensors, cotangents)
        return [*results, *gradients]

    return run


def compare(got, expected, tolerance):
    for one, other in zip(got, expected, strict=True):
        if one is None or other is None:
            # What is not connected may have a gradient of zeros.
            assert not any(np.any(x) for x in (one, other) if x is not None)
            continue
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        assert not other.size or relative_error(one, other) < tolerance


def tensors_of(arrays, dtype="float32"):
    return [tf.constant(array, dtype) for array in arrays]


def parts(array):
    return [array.real, array.imag]


@modes
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_the_scan_equals_the_definition(kernels, mode, per_step):
    """Complex, with resets, in both directions."""
    reverse, time = per_step, 2000
    rng = np.random.default_rng(1)
    shapes = [(2, time, 3), (2, 3)] * 2
    sequences = [
        rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        for shape in shapes
    ]
    inputs, state, *cotangents = sequences
    decay = rng.uniform(0.5, 0.999, (2, time, 3) if per_step else (3,))
    decay = decay * np.exp(1j * rng.uniform(size=decay.shape))
    # The definition gets the rounded numbers too.
    decay, inputs, state, *cotangents = (
        array.astype("complex64").astype("complex128")
        for array in (decay, inputs, state, *cotangents)
    )
    resets = rng.uniform(size=(2, time)) < 0.01
    marks = tf.constant(resets, "float32")

    def scan(*tensors):
        pairs = [tuple(tensors[i : i + 2]) for i in (0, 2, 4)]
        outputs, final_state = kernels.scan(*pairs, reverse, marks)
        return [*outputs, *final_state]

    given = tensors_of(p for a in (decay, inputs, state) for p in parts(a))
    upstream = tensors_of(p for a in cotangents for p in parts(a))
    got = in_mode(mode, with_gradients(scan, upstream))(*given)

    outputs, final = definition.linear_scan(
        decay, inputs, state, reverse, resets=resets
    )
    slopes = definition.linear_scan_gradients(
        decay, outputs, state, *cotangents, reverse, resets=resets
    )
    expected = [p for a in (outputs, final, *slopes) for p in parts(a)]
    compare(got, expected, 2e-6)


@modes
@pytest.mark.parametrize("solver", [None, "rk4"])
def test_the_nonlinear_scan_equals_its_plain_form(kernels, mode, solver):
    dynamics = Dynamics(keras.activations.gelu, solver, gated=bool(solver))
    sizes, linear, rank = (3, 20, 4, 9), bool(solver), 0 if solver else 2
    arrays = random_operands(
        dynamics, sizes, linear, rank, resets=solver is None
    )
    operands = tensors_of(arrays)
    rng = np.random.default_rng(1)
    upstream = tensors_of(
        rng.standard_normal(shape) for shape in ((3, 20, 9), (3, 9))
    )

    def fused(*operands):
        return kernels.nonlinear_scan(dynamics, Operands(*operands))

    def plain(*operands):
        return with_last_state(loop, dynamics, Operands(*operands))

    got = in_mode(mode, with_gradients(fused, upstream))(*operands)
    expected = tf.function(with_gradients(plain, upstream))(*operands)
    # Those of the bias of modReLU and of resets mean nothing.
    del got[-3:-1], expected[-3:-1]
    compare(got, expected, 3e-6)


def system():
    """Arguments of an impulse response."""
    rng = np.random.default_rng(1)
    steps = np.array([0.01, 0.02, 0.1])
    return [*hippo("legs", 20), steps, rng.uniform(-1, 1, (3, 2, 20))]


@modes
def test_the_impulse_response_equals_that_of_the_cpu(
    kernels, mode, monkeypatch
):
    rng = np.random.default_rng(1)
    given = tensors_of(system())
    upstream = tensors_of([rng.uniform(-1, 1, (3, 2, 50))])

    def response(*arguments):
        return [kernels.impulse_response(*arguments, 50, 0.5)]

    got = in_mode(mode, with_gradients(response, upstream))(*given)
    monkeypatch.undo()
    compare(got, with_gradients(response, upstream)(*given), 1e-6)


def test_no_features_have_no_response(kernels):
    *systems, steps, rows = tensors_of(system())
    given = *systems, steps[:0], rows[:0]

    def response(*arguments):
        return [kernels.impulse_response(*arguments, 50, 0.5)]

    got = with_gradients(response, [tf.zeros((0, 2, 50))])(*given)
    assert got[0].shape == (0, 2, 50)
    assert not any(np.any(gradient) for gradient in got[1:])


def second_gradients(function, count):
    """Gradients of a sum of squares of gradients, of a list of tensors."""

    def squares(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = tf.add_n([tf.reduce_sum(r**3) for r in function(*tensors)])
        slopes = tape.gradient(value, tensors[:count])
        return tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])

    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = squares(tensors)
        return tape.gradient(value, tensors[:count])

    return run


def test_second_derivatives_are_those_on_the_cpu(kernels, monkeypatch):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = random_operands(dynamics, (2, 5, 3, 4), True)
    rng = np.random.default_rng(1)
    scanned = [rng.uniform(-0.7, 0.7, s) for s in ((3,), (2, 5, 3), (2, 3))]

    def scan(decay, inputs, state):
        outputs, final = kernels.scan((decay,), (inputs,), (state,))
        return [*outputs, *final]

    def nonlinear(*operands):
        return kernels.nonlinear_scan(dynamics, Operands(*operands))

    def response(*arguments):
        return [kernels.impulse_response(*arguments, 9, 0.5)]

    cases = (
        (scan, scanned, 3),
        (nonlinear, operands, 4),
        (response, system(), 7),
    )
    got = [
        second_gradients(function, count)(*tensors_of(arrays, "float64"))
        for function, arrays, count in cases
    ]
    monkeypatch.undo()
    for one, (function, arrays, count) in zip(got, cases):
        given = tensors_of(arrays, "float64")
        compare(one, second_gradients(function, count)(*given), 1e-9)


def names_in(graph):
    """The operations of a graph, those within its loops included."""
    definition = graph.as_graph_def()
    inner = [function.node_def for function in definition.library.function]
    return {node.op for nodes in (definition.node, *inner) for node in nodes}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (keras_linrec.layers.RotRNN(4, state_size=8, num_heads=2), "Scan"),
        (keras_linrec.layers.LipschitzRNN(5), "NonlinearScan"),
        (keras_linrec.layers.LSSL(4, state_size=8), "ImpulseResponse"),
    ],
    ids=["rotrnn", "lipschitz_rnn", "lssl"],
)
def test_a_layer_runs_on_it(kernels, monkeypatch, layer, name):
    inputs = tf.random.stateless_normal((2, 30, 4), (1, 2))
    layer(inputs)

    def run():
        @tf.function(autograph=False)
        def gradients(inputs):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(layer(inputs) ** 2)
            weights = [weight.value for weight in layer.trainable_weights]
            return [value, *tape.gradient(value, weights)]

        concrete = gradients.get_concrete_function(inputs)
        return concrete(inputs), names_in(concrete.graph)

    got, names = run()
    assert {f"KerasLinrecCuda{name}", f"KerasLinrecCuda{name}Backward"} <= names
    monkeypatch.undo()
    expected, names = run()
    assert not any("Cuda" in name for name in names)
    compare(got, expected, 2e-5)


def test_a_projected_scan_runs_in_sections(kernels, monkeypatch):
    """As in `fit`, where batch and time are unknown."""
    layer = keras_linrec.layers.RotRNN(4, state_size=8, num_heads=2)
    inputs = tf.random.stateless_normal((2, 40, 3), (1, 2))
    layer(inputs)
    expected = layer(inputs)

    def run():
        @tf.function(autograph=False)
        def gradients(inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                value = tf.reduce_sum(layer(inputs) ** 2)
            weights = [weight.value for weight in layer.trainable_weights]
            return [value, *tape.gradient(value, [inputs, *weights])]

        unknown = tf.TensorSpec((None, None, 3), tf.float32)
        concrete = gradients.get_concrete_function(unknown)
        return concrete(inputs), names_in(concrete.graph)

    # Fifteen steps in a section.
    monkeypatch.setattr(sections, "_BYTES", 16 * 2 * 8 * 4)
    got, names = run()
    assert {"KerasLinrecCudaScan", "KerasLinrecCudaScanBackward"} <= names
    assert "TensorListSetItem" in names
    compare([layer(inputs)], [expected], 2e-5)
    monkeypatch.undo()
    expected, names = run()
    assert "TensorListSetItem" not in names
    compare(got, expected, 2e-5)


def test_a_failure_is_an_error_with_its_reason(kernels, stand_in):
    stand_in(shared_memory=100)
    decay, inputs, state = tf.ones(3), tf.ones((2, 5, 3)), tf.ones((2, 3))
    with pytest.raises(tf.errors.InternalError, match="invalid argument"):
        kernels.scan((decay,), (inputs,), (state,))
    stand_in()


def test_the_self_test_on_a_gpu_is_that_of_the_cuda_core(kernels):
    kernel = registry.load("native")
    assert registry.error_on("cuda", kernel) < 1e-5


def test_the_operations_have_kernels_for_gpus(kernels):
    for name in NAMES:
        found = registered.get_registered_kernels_for_op(name).kernel
        devices = {kernel.device_type for kernel in found}
        # The tests alone add those of the CPU.
        assert devices - {"CPU", "XLA_CPU_JIT"} == {"GPU", "XLA_GPU_JIT"}


def test_an_xla_program_for_a_gpu_calls_it(kernels):
    @tf.function(autograph=False, jit_compile=True)
    def run(decay, inputs):
        return kernels.scan((decay,), (inputs,), (inputs[:, 0],))

    program = run.experimental_get_compiler_ir(
        tf.TensorSpec((3,)), tf.TensorSpec((2, 5, 3))
    )
    text = program(stage="hlo", platform_name="GPU")
    assert 'custom_call_target="keras_linrec_tensorflow_cuda"' in text


def test_without_the_core_a_gpu_runs_portable_kernels(fresh):
    real = tf.config.get_visible_devices
    fresh.setattr(
        tf.config,
        "get_visible_devices",
        lambda kind=None: ["a GPU"] if kind == "GPU" else real(kind),
    )
    backend = backends.current()
    case = resolver.Case("linear_scan", "cuda", time=100)
    for is_here, name in ((True, "native"), (False, registry.portable())):
        fresh.setattr(native_cuda, "is_here", lambda is_here=is_here: is_here)
        assert backend.native_platform() == ("cuda" if is_here else "cpu")
        fresh.setattr(registry, "choose", lambda requested: "native")
        assert resolver.resolve(case).kernel == name
        assert resolver.resolve(case._replace(platform="cpu")).kernel == (
            "native"
        )


def test_on_a_gpu():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU here")
    from keras_linrec.kernels.tensorflow import native

    scan = native.FUNCTIONS["scan"]
    for jit_compile in (False, True):
        outputs, _ = tf.function(scan, jit_compile=jit_compile)(
            (tf.fill([3], 0.5),), (tf.ones((2, 5000, 3)),), (tf.zeros((2, 3)),)
        )
        np.testing.assert_allclose(outputs[0][:, -1], 2.0, rtol=1e-6)
