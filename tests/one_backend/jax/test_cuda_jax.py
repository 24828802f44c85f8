"""The linear scan of the CUDA core, called as XLA calls it."""

import os
import re
import subprocess
import sys
from functools import partial

import keras
import numpy as np
import pytest
from definitions import scan as definition
from support.autodiff import relative_error

if keras.backend.backend() != "jax":
    pytest.skip("here XLA calls the CUDA core", allow_module_level=True)

from types import SimpleNamespace

import jax
from support.cuda_stand_in import stand_in as stand_in
from support.nonlinear_cases import random_operands

import keras_linrec
from keras_linrec.kernels import backends
from keras_linrec.kernels import sections
from keras_linrec.kernels.jax import core_calls
from keras_linrec.kernels.jax.loop import loop
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import with_last_state
from keras_linrec.ops.structured.hippo import hippo

pytestmark = pytest.mark.rest

GPU = {"platform": "cuda"}


@pytest.fixture
def kernels(stand_in, monkeypatch):
    """The kernels of JAX on a GPU, for this test only."""
    from keras_linrec.kernels.jax import cuda as kernels

    core_calls.on_cuda.clear()
    monkeypatch.setattr(core_calls, "on_cuda", dict(kernels.FORMS))
    jax.clear_caches()
    yield kernels
    jax.clear_caches()


@pytest.fixture
def on_stand_in(kernels, monkeypatch):
    """The same, and programs for the CPU have the form for GPUs."""
    handler = core_calls.library.keras_linrec_xla_emulated_cuda
    kernels.register(handler, "cpu")
    original = core_calls.native_or_portable

    def native_or_portable(natives, *others):
        forms = dict(natives)
        if "cuda" in forms:
            natives = (("cpu", forms["cuda"]),)
        return original(natives, *others)

    monkeypatch.setattr(core_calls, "native_or_portable", native_or_portable)
    return SimpleNamespace(**kernels.FUNCTIONS)


def system(time, per_step, field):
    """Decay, inputs, initial state, and cotangents of the results."""
    rng = np.random.default_rng([time, per_step])
    shapes = (2, time, 3), (2, 3), (2, time, 3), (2, 3)
    inputs, state, *cotangents = (rng.standard_normal(s) for s in shapes)
    decay = rng.uniform(0.5, 0.999, (2, time, 3) if per_step else (3,))
    arrays = decay, inputs, state, *cotangents
    if field == "complex":
        arrays = [a * np.exp(1j * rng.uniform(size=a.shape)) for a in arrays]
    return [
        a.astype("complex64" if field == "complex" else "float32")
        for a in arrays
    ]


def parts(array):
    if np.iscomplexobj(array):
        return array.real.copy(), array.imag.copy()
    return (array,)


def whole(parts):
    arrays = [np.asarray(part, "float64") for part in parts]
    return arrays[0] if len(arrays) == 1 else arrays[0] + 1j * arrays[1]


def results_and_gradients(scan, reverse):
    @jax.jit
    def run(arguments, cotangents):
        def function(decay, inputs, state):
            return scan(decay, inputs, state, reverse)

        results, pull_back = jax.vjp(function, *arguments)
        return *results, *pull_back(cotangents)

    return run


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
def test_it_equals_the_definition(on_stand_in, field, per_step):
    for time, reverse in ((1, False), (2000, False), (2000, True)):
        arrays = system(time, per_step, field)
        tensors = tuple(map(parts, arrays))
        run = results_and_gradients(on_stand_in.scan, reverse)
        got = run(tensors[:3], tensors[3:])
        wide = [a.astype(np.result_type(a, "float64")) for a in arrays]
        outputs, final = definition.linear_scan(*wide[:3], reverse)
        slopes = definition.linear_scan_gradients(
            wide[0], outputs, *wide[2:], reverse
        )
        for one, other in zip(got, (outputs, final, *slopes), strict=True):
            assert relative_error(whole(one), other) < 1e-6


def test_resets_equal_the_definition(on_stand_in):
    arrays = system(2000, True, "complex")
    resets = np.random.default_rng(1).uniform(size=(2, 2000)) < 0.01
    decay, inputs, state, *cotangents = map(parts, arrays)
    marks = resets.astype("float32")

    @jax.jit
    def run(marks):
        def function(*given):
            return on_stand_in.scan(*given, resets=marks)

        results, pull_back = jax.vjp(function, decay, inputs, state)
        return *results, *pull_back(tuple(cotangents))

    wide = [a.astype("complex128") for a in arrays]
    outputs, final = definition.linear_scan(*wide[:3], resets=resets)
    slopes = definition.linear_scan_gradients(
        wide[0], outputs, *wide[2:], resets=resets
    )
    for one, other in zip(run(marks), (outputs, final, *slopes), strict=True):
        assert relative_error(whole(one), other) < 1e-6


@pytest.mark.parametrize("solver", [None, "rk4"])
@pytest.mark.parametrize("keep_all", [True, False], ids=["all", "last"])
def test_the_nonlinear_scan_equals_its_plain_form(
    on_stand_in, solver, keep_all
):
    dynamics = Dynamics(keras.activations.gelu, solver, gated=bool(solver))
    sizes, linear, rank = (3, 20, 4, 9), bool(solver), 0 if solver else 2
    arrays = random_operands(dynamics, sizes, linear, rank, resets=keep_all)
    operands = tuple(array.astype("float32") for array in arrays)
    rng = np.random.default_rng(1)
    cotangents = [
        rng.standard_normal(shape).astype("float32")
        for shape in ((3, 20 if keep_all else 0, 9), (3, 9))
    ]

    def plain(*operands):
        operands = Operands(*operands)
        outputs, final = with_last_state(loop, dynamics, operands)
        return (outputs if keep_all else outputs[:, :0]), final

    def fused(*operands):
        operands = Operands(*operands)
        return on_stand_in.nonlinear_scan(dynamics, operands, keep_all)

    def run(function):
        results, pull_back = jax.vjp(function, *operands)
        return *results, *pull_back(tuple(cotangents))

    got, expected = (
        jax.jit(partial(run, fused))(),
        jax.jit(partial(run, plain))(),
    )
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        if other.size:
            assert relative_error(np.asarray(one), np.asarray(other)) < 3e-6


def test_the_impulse_response_equals_that_of_the_cpu(on_stand_in):
    rng = np.random.default_rng(1)
    weights = hippo("legs", 20)
    steps = np.array([0.01, 0.02, 0.1])
    arrays = *weights, steps, rng.uniform(-1, 1, (3, 2, 20))
    arguments = [np.asarray(array, "float32") for array in arrays]
    cotangent = rng.uniform(-1, 1, (3, 2, 50)).astype("float32")

    def run(*arguments):
        def function(*arguments):
            return on_stand_in.impulse_response(*arguments, 50, 0.5)

        response, pull_back = jax.vjp(function, *arguments)
        return response, *pull_back(cotangent)

    program = jax.jit(run).lower(*arguments).as_text()
    assert "keras_linrec_cuda_impulse_response" in program
    got = jax.jit(run)(*arguments)
    pairs = jax.jit(jax.vmap(run))(*(np.stack([a, a]) for a in arguments))
    core_calls.on_cuda.clear()
    jax.clear_caches()
    expected = jax.jit(lambda *arguments: run(*arguments))(*arguments)
    for one, pair, other in zip(got, pairs, expected, strict=True):
        assert relative_error(np.asarray(one), np.asarray(other)) < 1e-6
        np.testing.assert_array_equal(pair[1], one)


def test_vmap_adds_systems(on_stand_in):
    arrays = system(50, True, "complex")[:3]
    tensors = tuple(map(parts, arrays))
    pairs = jax.tree.map(lambda a: np.stack([a, 2 * a]), tensors)
    got = jax.jit(jax.vmap(on_stand_in.scan))(*pairs)
    for index in range(2):
        one = jax.tree.map(lambda a, index=index: a[index], (pairs, got))
        expected = on_stand_in.scan(*one[0])
        for here, there in zip(
            jax.tree.leaves(one[1]), jax.tree.leaves(expected)
        ):
            np.testing.assert_array_equal(here, there)


def test_a_layer_runs_on_it(on_stand_in, monkeypatch):
    """As on a GPU: in sections, by the kernels of the CUDA core."""
    layer = keras_linrec.layers.RotRNN(4, state_size=8, num_heads=2)
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((2, 40, 3)).astype("float32")
    layer(inputs)
    weights = [weight.value for weight in layer.trainable_variables]
    fixed = [weight.value for weight in layer.non_trainable_variables]

    def loss(weights, inputs):
        outputs, _ = layer.stateless_call(weights, fixed, inputs)
        return (outputs**2).sum(), outputs

    def run():
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
        return jax.tree.leaves(gradient(weights, inputs))

    def program():
        return jax.jit(loss).lower(weights, inputs).as_text()

    monkeypatch.setattr(backends.current(), "describe", lambda tensor: GPU)
    monkeypatch.setattr(sections, "_BYTES", 16 * 2 * 8 * 4)
    got, text = run(), program()
    assert "@keras_linrec_cuda_scan(" in text and "while" in text
    monkeypatch.undo()
    jax.clear_caches()
    assert "keras_linrec_cuda" not in program()
    for one, other in zip(got, run(), strict=True):
        assert relative_error(np.asarray(one), np.asarray(other)) < 2e-5


def test_a_failure_is_an_error_with_its_reason(on_stand_in, stand_in):
    tensors = tuple(map(parts, system(5, False, "real")))[:3]
    stand_in(shared_memory=100)
    with pytest.raises(jax.errors.JaxRuntimeError, match="invalid argument"):
        jax.block_until_ready(on_stand_in.scan(*tensors))
    stand_in()


def test_programs_for_gpus_call_it(kernels):
    def program(reverse):
        run = results_and_gradients(kernels.FUNCTIONS["scan"], reverse)
        tensors = tuple(map(parts, system(5, False, "real")))
        traced = run.trace(tensors[:3], tensors[3:])
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "@keras_linrec_cuda_scan(" in program(False)
    assert "@keras_linrec_cuda_scan_backward(" in program(False)
    # As where its kernels cannot be had.
    core_calls.on_cuda.clear()
    assert "keras_linrec_scan" not in program(True)


def test_a_gpu_gets_them_or_those_of_pallas(kernels, monkeypatch):
    backend = backends.current()
    monkeypatch.setattr(backend, "platform", lambda: "cuda")
    assert backend.compiled() is kernels
    assert not backend.uses_pallas("cuda")

    def no_driver():
        raise UnsupportedPlatform("there is no driver here")

    monkeypatch.delitem(sys.modules, kernels.__name__)
    monkeypatch.delattr(backend, "cuda")
    monkeypatch.setattr(cuda, "core", no_driver)
    assert backend.compiled().__name__.endswith(".pallas")
    assert backend.uses_pallas("cuda") and backend.uses_pallas("tpu")


def test_each_gpu_computes_the_rows_that_it_holds():
    """In a process whose CPU is four devices."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "rows_here", __file__],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        capture_output=True,
        text=True,
    )
    assert "1 passed" in answer.stdout, answer.stdout


@pytest.mark.skipif(jax.device_count() < 4, reason="the test above runs it")
def test_rows_here(on_stand_in):
    mesh = jax.make_mesh((4,), ("batch",))
    rows = jax.NamedSharding(mesh, jax.P("batch"))
    whole_of = jax.NamedSharding(mesh, jax.P())
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype("float32")

    decay = (np.full(3, 0.9, "float32"),)
    inputs, state = (draw(8, 50, 3),), (draw(8, 3),)

    def loss(decay, inputs, state):
        outputs, final = on_stand_in.scan(decay, inputs, state, False)
        return jax.numpy.sum(outputs[0] ** 2) + jax.numpy.sum(final[0] ** 3)

    slopes = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    given = (
        jax.device_put(decay, whole_of),
        jax.device_put(inputs, rows),
        jax.device_put(state, rows),
    )
    program = slopes.lower(*given).compile()
    text = program.as_text()
    assert "keras_linrec" in text
    moves = r" (?:all-gather|all-to-all|collective-permute)(?:-start)?\("
    assert not re.findall(moves, text)
    got = jax.tree.leaves(program(*given))
    alone = jax.device_put((decay, inputs, state), jax.devices()[0])
    expected = jax.tree.leaves(slopes(*alone))
    for one, other in zip(got, expected, strict=True):
        assert relative_error(np.asarray(one), np.asarray(other)) < 1e-6
