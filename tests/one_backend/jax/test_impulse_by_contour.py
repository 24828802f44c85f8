"""The impulse response by a contour, on JAX."""

import keras
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("the contour is JAX's", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np
from support.autodiff import relative_error
from support.structured_systems import response_of

from keras_linrec import kernels
from keras_linrec.kernels.jax import impulse_by_contour as module
from keras_linrec.kernels.jax.float64_scope import LOWERS_FLOAT64_SCOPE
from keras_linrec.kernels.operations.structured.discretization import (
    discretised,
)
from keras_linrec.kernels.operations.structured.impulse_by_blocks import (
    impulse_by_blocks,
)
from keras_linrec.kernels.resolver import Case
from keras_linrec.kernels.resolver import resolve
from keras_linrec.ops.structured.hippo import hippo

pytestmark = pytest.mark.skipif(
    not LOWERS_FLOAT64_SCOPE, reason="this JAX lowers no float64 in a scope"
)

TIMESCALES = (1e-3, 1e-2, 1e-1)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of two rows, which compile sooner than eight."""
    monkeypatch.setattr(module, "_BLOCK", 2)


def blocks(*arguments):
    *systems, output_matrix, time, alpha = arguments
    delta, input_vector = discretised(*systems, alpha)
    return impulse_by_blocks(delta, input_vector, output_matrix, time)


def contour(time, alpha=0.5):
    return lambda *arrays: module.impulse_by_contour(
        blocks, *arrays, time, alpha
    )


def response_and_flag(arrays, time, alpha=0.5):
    call = module._Call(blocks, time, alpha)
    run = jax.jit(lambda *arrays: module._response(call, *arrays))
    return run(*arrays)


def systems(size=5, channels=2, measure="legs", dtype="float32"):
    random = np.random.default_rng([size, channels])
    p, d, q, t, b = (
        values * (1 + 0.1 * random.uniform(-1, 1, values.shape))
        for values in hippo(measure, size)
    )
    t[0, :-1] += 0.1 * random.uniform(-1, 1, size - 1)
    output_matrix = random.standard_normal((len(TIMESCALES), channels, size))
    arrays = p, d, q, t, b, TIMESCALES, output_matrix
    return [np.asarray(values, dtype) for values in arrays]


def unstable():
    """A mode that grows, beside one that decays."""
    one = np.ones(2, "float32")
    rows = one * np.array([[0], [1], [0]], "float32")
    steps = np.full(1, 0.5, "float32")
    # 1.05 a step, which is 3e8 after 400.
    shift = np.array([-5, -0.9024], "float32")
    return [one, shift, one, rows, one, steps, one[None, None]]


def expected_response(arrays, time, alpha=0.5):
    wide = (np.asarray(values, "float64") for values in arrays)
    return response_of(*wide, time, alpha)


def error_by_feature(got, expected):
    got = np.asarray(got, "float64")
    return max(relative_error(*pair) for pair in zip(got, expected))


@pytest.mark.parametrize(
    ("measure", "size", "time", "alpha"),
    [
        ("legs", 1, 1, 0.5),
        pytest.param("legs", 2, 2, 1.0, marks=pytest.mark.rest),
        pytest.param("legt", 5, 63, 0.5, marks=pytest.mark.rest),
        pytest.param("lagt", 7, 33, 0.8, marks=pytest.mark.rest),
    ],
)
def test_the_response_equals_the_definition(measure, size, time, alpha):
    arrays = systems(size, 2, measure)
    got, flag = response_and_flag(arrays, time, alpha)
    expected = expected_response(arrays, time, alpha)
    assert flag == 1 and got.dtype == jnp.float32
    assert error_by_feature(got, expected) < 2e-7


@pytest.mark.rest
@pytest.mark.parametrize("size", [1, 5])
def test_float64_keeps_its_digits(size):
    arrays = systems(size, dtype="float64")
    with jax.enable_x64(True):
        got, flag = response_and_flag(arrays, 40)
        assert flag == 1 and got.dtype == jnp.float64
        assert error_by_feature(got, expected_response(arrays, 40)) < 1e-10


@pytest.mark.rest
def test_many_states_and_steps(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    for measure in ("legs", "legt", "lagt"):
        arrays = systems(129, 1, measure)
        got, flag = response_and_flag(arrays, 784)
        assert flag == 1
        assert error_by_feature(got, expected_response(arrays, 784)) < 2e-7


@pytest.mark.rest
def test_half_precision_is_rounded_at_the_end():
    arrays = [values.astype(jnp.bfloat16) for values in systems(3)]
    got, flag = response_and_flag(arrays, 9)
    assert flag == 1 and got.dtype == jnp.bfloat16
    assert error_by_feature(got, expected_response(arrays, 9)) < 2**-8


def change(arrays, index, direction, weights, time, alpha):
    """The slope of sum(weights * response) along a change of one argument."""

    def moved(step):
        wide = [np.asarray(values, "float64") for values in arrays]
        wide[index] = wide[index] + step * direction
        return np.sum(weights * expected_response(wide, time, alpha))

    return (8 * (moved(1e-4) - moved(-1e-4)) - moved(2e-4) + moved(-2e-4)) / (
        12e-4
    )


@pytest.mark.parametrize(
    ("size", "channels", "time", "alpha", "dtype", "limit"),
    [
        pytest.param(1, 1, 1, 0.5, "float32", 1e-6, marks=pytest.mark.rest),
        (5, 2, 20, 0.8, "float32", 1e-6),
        pytest.param(5, 2, 20, 0.5, "float64", 1e-9, marks=pytest.mark.rest),
    ],
)
def test_gradients_of_every_argument(
    size, channels, time, alpha, dtype, limit, monkeypatch
):
    # Several parts of the points.
    monkeypatch.setattr(module, "_MOST_BYTES", 8 * 2**10)
    arrays = systems(size, channels, dtype=dtype)
    random = np.random.default_rng(1)
    weights = random.standard_normal((len(TIMESCALES), channels, time))
    with jax.enable_x64(dtype == "float64"):
        rounded = jnp.asarray(weights, dtype)

        def loss(*arrays):
            return jnp.sum(rounded * contour(time, alpha)(*arrays))

        got = jax.jit(jax.grad(loss, tuple(range(7))))(*arrays)
        got = [np.asarray(slope) for slope in got]
    assert got[3][0, -1] == got[3][2, -1] == 0.0
    for index, (slope, values) in enumerate(zip(got, arrays)):
        assert slope.shape == values.shape and slope.dtype == dtype
        direction = np.abs(values) * random.standard_normal(values.shape)
        if index == 3:
            direction[0, -1] = direction[2, -1] = 0
        terms = np.asarray(slope, "float64") * direction
        expected = change(arrays, index, direction, weights, time, alpha)
        scale = max(np.abs(terms).sum(), 1e-30)
        assert abs(terms.sum() - expected) < limit * scale, index


@pytest.mark.parametrize(
    "read_out",
    [
        # The growth is visible before the end.
        1.0,
        # Its share of the response is below what the first tap shows.
        pytest.param(1e-12, marks=pytest.mark.rest),
    ],
)
def test_a_mode_that_grows_runs_in_blocks(read_out):
    arrays = unstable()
    arrays[6] = np.array([[[1, read_out]]], "float32")
    got, flag = response_and_flag(arrays, 400)
    assert flag == 0
    assert error_by_feature(got, expected_response(arrays, 400)) < 1e-4


@pytest.mark.rest
def test_slow_growth_stays_on_the_contour():
    arrays = unstable()
    got, flag = response_and_flag(arrays, 40)
    assert flag == 1
    assert error_by_feature(got, expected_response(arrays, 40)) < 1e-6


@pytest.mark.rest
def test_gradients_in_blocks_are_those_of_the_blocks():
    arrays = unstable()

    def slopes(function):
        def loss(*arrays):
            return jnp.sum(function(*arrays)[..., :5] ** 2)

        return jax.jit(jax.grad(loss, tuple(range(7))))(*arrays)

    got = slopes(contour(400))
    for one, other in zip(got, slopes(lambda *a: blocks(*a, 400, 0.5))):
        assert np.array_equal(one, other)


@pytest.mark.rest
def test_second_derivatives_are_those_of_the_blocks():
    arrays = systems(3)
    constants = [np.full_like(values, 0.1) for values in arrays]

    def second(function):
        def loss(*arrays):
            return jnp.sum(function(*arrays) ** 2)

        def along(*arrays):
            slopes = jax.grad(loss, tuple(range(7)))(*arrays)
            return sum(jnp.vdot(a, b) for a, b in zip(slopes, constants))

        return jax.jit(jax.grad(along, tuple(range(7))))(*arrays)

    got = second(contour(12))
    for one, other in zip(got, second(lambda *a: blocks(*a, 12, 0.5))):
        assert relative_error(one, other) < 1e-4


@pytest.mark.rest
@pytest.mark.parametrize("axes", [(0,) * 7, (None,) * 6 + (0,)])
def test_vmap_equals_a_loop(axes):
    given = [
        np.stack([values, 1.1 * values]) if axis == 0 else values
        for values, axis in zip(systems(3), axes)
    ]

    def loss(*arrays):
        return jnp.sum(contour(9)(*arrays) ** 2)

    run = jax.jit(jax.value_and_grad(loss, tuple(range(7))))
    got = jax.jit(jax.vmap(run, axes))(*given)
    for index in range(2):
        one = [a if x is None else a[index] for a, x in zip(given, axes)]
        expected = jax.tree.leaves(run(*one))
        for part, other in zip(jax.tree.leaves(got), expected):
            assert relative_error(part[index], other) < 1e-5


@pytest.mark.rest
def test_without_jit_it_is_the_same():
    arrays = systems(3)
    got = contour(9)(*arrays)
    assert error_by_feature(got, expected_response(arrays, 9)) < 2e-7


def test_programs_for_a_tpu_and_for_files_run_in_blocks():
    arrays = [jnp.asarray(values) for values in systems(3)]
    run = jax.jit(contour(9))
    assert "f64" in run.lower(*arrays).as_text()
    for platforms in (("tpu",), ("cuda", "cpu")):
        program = jax.export.export(run, platforms=platforms)(*arrays)
        assert "f64" not in program.mlir_module()


def test_it_runs_on_gpus_that_compute_float64_fast(monkeypatch):
    def chosen(**facts):
        case = Case("impulse_response", time=784, channels=128, batch=None)
        case = case._replace(**{"platform": "cuda", **facts})
        return resolve(case).form

    assert chosen() == chosen(dtype="bfloat16") == "contour"
    assert chosen(time=2**14) == chosen(platform="tpu") == "blocks"

    class Device:
        compute_capability = "8.9"

    monkeypatch.setattr(module.jax, "devices", lambda: [Device])
    assert chosen() == "blocks"
    monkeypatch.setattr(Device, "compute_capability", "9.0")
    assert chosen() == "contour"


def test_the_reason_is_explained():
    (decision,) = kernels.explain(
        "impulse_response", (1, 784, 128), platform="cuda"
    )
    assert decision.form == "contour"
    assert "all steps at once" in str(decision)
