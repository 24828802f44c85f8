"""JAX's Pallas kernels, interpreted on the CPU and lowered for GPU and TPU."""

import keras
import numpy as np
import pytest
from autodiff import numerical_gradients
from autodiff import relative_error
from autodiff import tensors
from autodiff import to_numpy
from definitions import scan as definition

if keras.backend.backend() != "jax":
    pytest.skip("Pallas kernels are for JAX", allow_module_level=True)

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu

from keras_linrec.kernels.jax import pallas
from keras_linrec.kernels.jax.scan import sequential

directions = pytest.mark.parametrize(
    "reverse", [False, True], ids=["forward", "reverse"]
)
decays = pytest.mark.parametrize(
    "per_step", [False, True], ids=["fixed", "per_step"]
)
fields = pytest.mark.parametrize("field", ["real", "complex"])


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of time, the last of them shorter, and of channels."""
    monkeypatch.setattr(
        pallas, "_block_size", lambda time, channels: (min(time, 16), 2)
    )


def system(field, time, per_step, leading=(), batch=2, channels=3):
    """Real parts of decay, inputs and initial state, then imaginary ones."""
    rng = np.random.default_rng([time, per_step])
    shape = (batch, time, channels) if per_step else (channels,)
    radius = rng.uniform(0.5, 0.999, (*leading, *shape))
    decay = radius * np.exp(2j * np.pi * rng.uniform(size=radius.shape))
    arrays = [decay.real, decay.imag]
    for shape in ((batch, time, channels), (batch, channels)):
        arrays += [rng.standard_normal((*leading, *shape)) for _ in range(2)]
    if field == "real":
        arrays = arrays[::2]
    return [array.astype("float32").astype("float64") for array in arrays]


def triples(arguments):
    size = len(arguments) // 3
    return [tuple(arguments[i : i + size]) for i in range(0, 3 * size, size)]


def run(scan, reverse, **options):
    """The scan as a function of a list, to a flat tuple."""

    def function(arguments):
        outputs, final = scan(*triples(arguments), reverse, **options)
        return *outputs, *final

    return function


def interpreted(reverse):
    return run(pallas.scan, reverse, interpret=True)


def portable(reverse):
    """A kernel that other tests have shown to be right."""

    def scan(decay, inputs, initial_state, reverse):
        outputs = sequential(decay, inputs, initial_state, reverse)
        last = 0 if reverse else -1
        return outputs, tuple(part[:, last] for part in outputs)

    return run(scan, reverse)


def defined(reverse):
    def function(arguments):
        whole = [
            parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
            for parts in triples(arguments)
        ]
        results = definition.linear_scan(*whole, reverse)
        if len(arguments) == 3:
            return results
        return tuple(f(r) for r in results for f in (np.real, np.imag))

    return function


def weighted(function, arguments):
    """A sum over all outputs, of each entry times a number of its own."""
    outputs = function(arguments)
    return sum(jnp.sum(o * cosines(jnp, o.shape)) for o in outputs)


def cosines(library, shape):
    return library.cos(library.arange(np.prod(shape)).reshape(shape))


def compare(got, expected, tolerance):
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < tolerance


@directions
@decays
@fields
def test_the_scan_equals_its_definition(small_blocks, field, per_step, reverse):
    for time in (1, 2, 63, 100):
        arrays = system(field, time, per_step)
        got = to_numpy(jax.jit(interpreted(reverse))(tensors(arrays)))
        compare(got, defined(reverse)(arrays), 2e-5)


@directions
@decays
@fields
def test_every_gradient_equals_that_of_the_definition(
    small_blocks, field, per_step, reverse
):
    arrays = system(field, 35, per_step, batch=1)
    gradient = jax.jit(jax.grad(lambda a: weighted(interpreted(reverse), a)))
    weights = [cosines(np, o.shape) for o in defined(reverse)(arrays)]
    expected = numerical_gradients(defined(reverse), arrays, weights)
    compare(to_numpy(gradient(tensors(arrays))), expected, 1e-4)


@pytest.mark.parametrize(
    ("field", "time", "per_step", "reverse"),
    [
        ("real", 1, True, False),
        ("real", 20, False, True),
        ("complex", 1, False, True),
        ("complex", 20, True, False),
    ],
)
def test_second_derivatives_are_those_of_a_portable_kernel(
    small_blocks, field, time, per_step, reverse
):
    def second(function):
        def cubes(arguments):
            return sum(jnp.sum(o * o * o) for o in function(arguments))

        def slope(arguments):
            gradients = jax.grad(cubes)(arguments)
            return sum(weighted(lambda g: g, [g]) for g in gradients)

        return to_numpy(jax.jit(jax.grad(slope))(arrays))

    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in system(field, time, per_step)]
        compare(second(interpreted(reverse)), second(portable(reverse)), 1e-12)


def test_vmap_gives_each_system_its_own(small_blocks):
    arrays = tensors(system("complex", 20, False, leading=(3,)))
    # The decay's real part is everyone's.
    arrays[0] = arrays[0][0]
    axes = [None, *[0] * (len(arrays) - 1)]

    def gradients(function):
        return jax.grad(lambda a: weighted(function, a))

    together = jax.jit(jax.vmap(gradients(interpreted(False)), (axes,)))
    got = to_numpy(together(arrays))
    one_by_one = jax.jit(gradients(portable(False)))
    for index in range(3):
        expected = one_by_one([arrays[0], *(a[index] for a in arrays[1:])])
        compare([g[index] for g in got], to_numpy(expected), 1e-4)


def test_blocks_of_a_tpu_hand_the_state_on(monkeypatch):
    monkeypatch.setattr(pallas, "_platform", lambda: "tpu")
    arrays = tensors(system("real", 270, False, batch=2, channels=3))
    # It keeps copies of blocks as a TPU does, and finds what is read without
    # having been written.
    interpret = tpu.InterpretParams(uninitialized_memory="nan")
    got, expected = (
        jax.jit(jax.grad(lambda a, f=function: weighted(f, a)))(arrays)
        for function in (
            run(pallas.scan, False, interpret=interpret),
            portable(False),
        )
    )
    compare(to_numpy(got), to_numpy(expected), 1e-4)


@directions
@decays
@fields
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_it_lowers_without_the_device(
    monkeypatch, platform, field, per_step, reverse
):
    monkeypatch.setattr(pallas, "_platform", lambda: platform)

    def loss(arguments):
        return weighted(run(pallas.scan, reverse), arguments)

    # A single step, and blocks that are not full in time and channels.
    for time, channels in ((1, 3), (600, 300)):
        arrays = tensors(system(field, time, per_step, channels=channels))
        traced = jax.jit(jax.grad(loss)).trace(arrays)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert {"cuda": "triton", "tpu": "tpu_custom_call"}[platform] in text


def test_several_systems_in_float64_lower_for_a_gpu(monkeypatch):
    monkeypatch.setattr(pallas, "_platform", lambda: "cuda")

    def gradient(arguments):
        return jax.grad(lambda a: weighted(run(pallas.scan, False), a))(
            arguments
        )

    with jax.enable_x64(True):
        arrays = system("complex", 20, True, leading=(3,))
        traced = jax.jit(jax.vmap(gradient)).trace(arrays)
        traced.lower(lowering_platforms=("cuda",))


@decays
def test_on_an_accelerator(per_step):
    if jax.default_backend() == "cpu":
        pytest.skip("there is no GPU or TPU here")
    arrays = tensors(system("complex", 3000, per_step, channels=300))
    for reverse in (False, True):
        got, expected = (
            jax.jit(jax.grad(lambda a, f=function: weighted(f, a)))(arrays)
            for function in (run(pallas.scan, reverse), portable(reverse))
        )
        compare(to_numpy(got), to_numpy(expected), 1e-4)
