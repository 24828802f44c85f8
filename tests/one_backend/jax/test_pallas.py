"""JAX's Pallas kernels, interpreted on the CPU and lowered for GPU and TPU."""

from functools import partial

import keras
import numpy as np
import pytest
from definitions import scan as definition
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy

if keras.backend.backend() != "jax":
    pytest.skip("Pallas kernels are for JAX", allow_module_level=True)

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu

from keras_linrec.kernels.jax import pallas
from keras_linrec.kernels.jax.scan import sequential

pytestmark = pytest.mark.rest

directions = pytest.mark.parametrize(
    "reverse", [False, True], ids=["forward", "reverse"]
)
decays = pytest.mark.parametrize(
    "per_step", [False, True], ids=["fixed", "per_step"]
)
fields = pytest.mark.parametrize("field", ["real", "complex"])


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of channels and of time, the last of them shorter."""
    monkeypatch.setattr(
        pallas, "_block_size", lambda time, channels: (min(time, 16), 2)
    )


def system(field, time, per_step, leading=(), batch=2, channels=3):
    """Decay, inputs and initial state; if complex, each as two parts."""
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
    """The scan as a function of a list that returns a flat tuple."""

    def function(arguments):
        outputs, final = scan(*triples(arguments), reverse, **options)
        return *outputs, *final

    return function


def interpreted(reverse):
    return run(pallas.scan, reverse, interpret=True)


def portable(reverse):
    """A kernel that other tests compare with the definition."""

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
    """The sum over all outputs, with a different weight for each entry."""
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
    for time in (1, 100):
        arrays = system(field, time, per_step)
        got = to_numpy(jax.jit(interpreted(reverse))(tensors(arrays)))
        compare(got, defined(reverse)(arrays), 2e-5)


@decays
@fields
def test_every_gradient_equals_that_of_the_definition(
    small_blocks, field, per_step
):
    # The gradient of a scan is a scan in the opposite direction.
    reverse = per_step
    arrays = system(field, 35, per_step, batch=1)
    gradient = jax.jit(jax.grad(lambda a: weighted(interpreted(reverse), a)))
    weights = [cosines(np, o.shape) for o in defined(reverse)(arrays)]
    expected = numerical_gradients(defined(reverse), arrays, weights)
    compare(to_numpy(gradient(tensors(arrays))), expected, 1e-4)


@pytest.mark.weekly
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
    # All systems share the decay's real part.
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


def marks_of(batch, time):
    """Resets: in the second row only before the first step, and the last."""
    marks = np.random.default_rng(2).uniform(size=(batch, time)) < 0.1
    marks[1] = False
    marks[1, [0, -1]] = True
    return marks.astype("float32")


@pytest.mark.weekly
@directions
@decays
@fields
def test_resets_equal_the_portable_kernel(
    small_blocks, field, per_step, reverse
):
    arrays = tensors(system(field, 35, per_step))
    resets = marks_of(2, 35)

    def plain(decay, inputs, initial_state, reverse):
        outputs = sequential(decay, inputs, initial_state, reverse, resets)
        last = 0 if reverse else -1
        return outputs, tuple(part[:, last] for part in outputs)

    def both(function):
        @jax.jit
        def gradient(arguments):
            slopes = jax.grad(lambda a: weighted(function, a))(arguments)
            return *function(arguments), *slopes

        return to_numpy(gradient(arrays))

    given = {"resets": jnp.asarray(resets), "interpret": True}
    got = both(run(pallas.scan, reverse, **given))
    compare(got, both(run(plain, reverse)), 2e-5)


@pytest.mark.weekly
def test_second_derivatives_with_resets_are_those_of_a_portable_kernel(
    small_blocks,
):
    resets = marks_of(2, 20)

    def second(scan):
        def cubes(arguments):
            outputs, final = scan(*triples(arguments))
            return sum(jnp.sum(o**3) for o in (*outputs, *final))

        def slope(arguments):
            gradients = jax.grad(cubes)(arguments)
            return sum(weighted(lambda g: g, [g]) for g in gradients)

        return to_numpy(jax.jit(jax.grad(slope))(arrays))

    def plain(*given):
        outputs = sequential(*given, False, resets)
        return outputs, tuple(part[:, -1] for part in outputs)

    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in system("complex", 20, True)]
        kernel = partial(
            pallas.scan, resets=resets.astype("float64"), interpret=True
        )
        compare(second(kernel), second(plain), 1e-12)


def test_a_nan_stops_at_a_reset(small_blocks):
    decay, inputs, state = triples(tensors(system("real", 35, False)))
    inputs = (inputs[0].at[:, 3].set(jnp.nan),)
    resets = np.zeros((2, 35), "float32")
    resets[0, 20] = 1

    def scan(inputs):
        results = pallas.scan(
            decay, inputs, state, resets=resets, interpret=True
        )
        return results[0][0]

    outputs, pull_back = jax.vjp(scan, inputs)
    missing = np.isnan(outputs).any(-1)
    np.testing.assert_array_equal(np.flatnonzero(missing[0]), range(3, 20))
    np.testing.assert_array_equal(np.flatnonzero(missing[1]), range(3, 35))
    # Nor does that of a cotangent go on to the steps before one.
    d_outputs = jnp.ones_like(outputs).at[:, 30].set(jnp.nan)
    ((d_inputs,),) = pull_back(d_outputs)
    missing = np.isnan(d_inputs).any(-1)
    np.testing.assert_array_equal(np.flatnonzero(missing[0]), range(20, 31))
    np.testing.assert_array_equal(np.flatnonzero(missing[1]), range(31))


def test_blocks_on_a_tpu_pass_on_the_state(monkeypatch):
    monkeypatch.setattr(pallas, "_platform", lambda: "tpu")
    arrays = tensors(system("real", 270, False, batch=2, channels=3))
    # This mode copies blocks as a TPU does, and shows reads of memory that was
    # never written.
    interpret = tpu.InterpretParams(uninitialized_memory="nan")
    got, expected = (
        jax.jit(jax.grad(lambda a, f=function: weighted(f, a)))(arrays)
        for function in (
            run(pallas.scan, False, interpret=interpret),
            portable(False),
        )
    )
    compare(to_numpy(got), to_numpy(expected), 1e-4)


@decays
@fields
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_it_lowers_without_the_device(monkeypatch, platform, field, per_step):
    reverse = per_step
    monkeypatch.setattr(pallas, "_platform", lambda: platform)

    # A single step, and partial blocks of time and channels.
    for time, channels, has_resets in ((1, 3, True), (600, 300, per_step)):
        resets = jnp.ones((2, time)) if has_resets else None

        def loss(arguments, resets=resets):
            return weighted(run(pallas.scan, reverse, resets=resets), arguments)

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


def test_with_float64_switched_on_it_lowers_for_a_tpu(monkeypatch):
    """float64 itself in portable form, as a TPU's kernels have none."""
    monkeypatch.setattr(pallas, "_platform", lambda: "tpu")

    def text_for(dtype):
        arrays = system("complex", 600, False, channels=300)
        arrays = [jnp.asarray(array, dtype) for array in arrays]
        run_scan = run(pallas.scan, False)
        gradient = jax.jit(jax.grad(lambda a: weighted(run_scan, a)))
        lowered = gradient.trace(arrays).lower(lowering_platforms=("tpu",))
        return lowered.as_text()

    with jax.enable_x64(True):
        assert "tpu_custom_call" in text_for("float32")
        assert "tpu_custom_call" not in text_for("float64")


@pytest.mark.parametrize("empty", ["batch", "channels"])
def test_a_scan_without_numbers_has_none(empty):
    arrays = tensors(system("complex", 4, False, **{empty: 0}))
    gradients = jax.grad(lambda a: weighted(run(pallas.scan, False), a))(arrays)
    for array, gradient in zip(arrays, gradients, strict=True):
        assert gradient.shape == array.shape
        assert not np.any(gradient)


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
