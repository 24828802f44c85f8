"""The native kernels as JAX's functions."""

from functools import partial

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import export
from support.autodiff import relative_error
from support.needs_native import require_native

import keras_linrec
from keras_linrec import ops
from keras_linrec.kernels.operations import projected_scan as projection

native = require_native()

BATCH, TIME, CHANNELS, FEATURES, UNITS = 2, 7, 3, 4, 5


@pytest.fixture(autouse=True)
def numbers():
    return np.random.default_rng(0)


def uniform(numbers, *shape):
    return jnp.asarray(numbers.uniform(-0.7, 0.7, shape), "float32")


def test_the_native_kernel_is_in_the_program(numbers):
    text = (
        jax.jit(lambda d, x: ops.linear_scan(d, x))
        .lower(jnp.ones(3), jnp.ones((2, 5, 3)))
        .as_text()
    )
    assert "keras_linrec_scan" in text


def test_calls_outside_jit_reuse_one_program(numbers):
    from keras_linrec.kernels.jax.native import _compiled

    given = uniform(numbers, 3), uniform(numbers, 2, 11, 3)
    before = _compiled._cache_size()
    for _ in range(2):
        outside, _ = ops.linear_scan(*given)
    assert _compiled._cache_size() == before + 1
    inside, _ = jax.jit(lambda *given: ops.linear_scan(*given))(*given)
    np.testing.assert_array_equal(outside, inside)
    assert _compiled._cache_size() == before + 1


def assert_vmap_equals_a_loop(run, axes, given, count):
    """Compare `run` under `jax.vmap` and called for each of `count` systems."""
    got = jax.jit(jax.vmap(run, axes))(*given)
    for index in range(count):
        one_system = [
            array[index] if axis == 0 else array
            for array, axis in zip(given, axes)
        ]
        expected = run(*one_system)
        for one, other in zip(*map(jax.tree.leaves, (got, expected))):
            assert relative_error(one[index], other) < 1e-5


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_vmap_over_any_argument_equals_a_loop(numbers, per_step):
    sequence = BATCH, TIME, CHANNELS
    decay = uniform(numbers, 4, *(sequence if per_step else sequence[2:]))
    inputs = uniform(numbers, 4, BATCH, TIME, CHANNELS)
    state = uniform(numbers, 4, BATCH, CHANNELS)

    def loss(decay, inputs, state):
        outputs, final_state = ops.linear_scan(decay, inputs, state)
        return jnp.sum(outputs**2) + jnp.sum(final_state**3)

    run = jax.value_and_grad(loss, (0, 1, 2))
    for axes in ((0, 0, 0), (None, 0, None), (0, None, None)):
        given = [
            array if axis == 0 else array[0]
            for array, axis in zip((decay, inputs, state), axes)
        ]
        assert_vmap_equals_a_loop(run, axes, given, 4)


def test_vmap_of_the_projected_scan_equals_a_loop(numbers):
    inputs = uniform(numbers, 4, BATCH, TIME, FEATURES)
    decay, into, out = (
        [uniform(numbers, *shape) for _ in range(2)]
        for shape in ((CHANNELS,), (FEATURES, CHANNELS), (CHANNELS, UNITS))
    )

    @jax.value_and_grad
    def run(inputs):
        outputs, state = ops.projected_scan(decay, inputs, into, out)
        return jnp.sum(outputs**2) + jnp.sum(state[0] * state[1])

    values, slopes = jax.vmap(run)(inputs)
    for index in range(4):
        value, slope = run(inputs[index])
        assert relative_error(values[index], value) < 1e-5
        assert relative_error(slopes[index], slope) < 1e-5


def systems(numbers, several):
    """Arguments of several impulse responses at once."""
    bands = 1.5 + uniform(numbers, several, 3, 3)
    vectors = [1.5 + uniform(numbers, several, 3) for _ in range(4)]
    p, d, q, b = vectors
    steps = 1.0 + uniform(numbers, several, 2)
    output_matrix = uniform(numbers, several, 2, 2, 3)
    return -p, d, q, bands, b, steps, output_matrix


@pytest.mark.parametrize("batched", [(0, 1, 2, 3, 4, 5, 6), (6,), (3, 5)])
def test_vmap_of_the_impulse_response_equals_a_loop(numbers, batched):
    axes = tuple(0 if index in batched else None for index in range(7))
    given = [
        array if axis == 0 else array[0]
        for array, axis in zip(systems(numbers, 4), axes)
    ]

    def loss(*given):
        return jnp.sum(native.impulse_response(*given, 6, 0.5) ** 2)

    run = jax.value_and_grad(loss, tuple(range(7)))
    assert_vmap_equals_a_loop(run, axes, given, 4)


def test_the_native_impulse_response_is_in_the_program(numbers):
    given = [array[0] for array in systems(numbers, 1)]

    def run(*given):
        return native.impulse_response(*given, 6, 0.5)

    text = jax.jit(run).lower(*given).as_text()
    assert "keras_linrec_impulse_response" in text


def test_the_second_derivative_is_that_of_the_plain_form(numbers):
    inputs = uniform(numbers, BATCH, TIME, FEATURES)
    decay, into, out = (
        [uniform(numbers, *shape) for _ in range(2)]
        for shape in ((CHANNELS,), (FEATURES, CHANNELS), (CHANNELS, UNITS))
    )
    state = [uniform(numbers, BATCH, CHANNELS) for _ in range(2)]
    given = decay, inputs, into, out, state

    def twice(projected_scan):
        def loss(given):
            outputs, (real, imag) = projected_scan(*given)
            return jnp.sum(outputs**3) + jnp.sum(real * imag)

        def squares(given):
            slopes = jax.tree.leaves(jax.grad(loss)(given))
            return sum(jnp.sum(slope**2) for slope in slopes)

        return jax.tree.leaves(jax.jit(jax.grad(squares))(given))

    got = twice(native.projected_scan)
    expected = twice(partial(projection.projected_scan, native.scan))
    for one, other in zip(got, expected):
        assert relative_error(one, other) < 1e-5


def test_an_exported_program_needs_no_native_code(numbers):
    shape = jax.ShapeDtypeStruct((BATCH, TIME, CHANNELS), "float32")
    decay = jnp.full(CHANNELS, 0.5)
    program = export.export(jax.jit(lambda x: ops.linear_scan(decay, x)))(shape)
    assert "keras_linrec_scan" not in program.mlir_module()
    inputs = uniform(numbers, BATCH, TIME, CHANNELS)
    got = export.deserialize(program.serialize()).call(inputs)
    for one, other in zip(got, ops.linear_scan(decay, inputs)):
        assert relative_error(one, other) < 1e-6


@pytest.fixture
def without_jit():
    jax.config.update("jax_disable_jit", True)
    yield
    jax.config.update("jax_disable_jit", False)


@pytest.mark.rest
def test_without_jit_layers_and_operations_give_the_same(numbers, without_jit):
    """JAX' own way to debug: operations run one by one, with gradients."""
    inputs = uniform(numbers, BATCH, TIME, CHANNELS)
    response = uniform(numbers, CHANNELS, 1, TIME)
    square = uniform(numbers, CHANNELS, CHANNELS)
    mask = np.arange(TIME) < [[3], [TIME]]
    layer = keras_linrec.layers.RotRNN(2, state_size=4, num_heads=2)

    def run(inputs):
        return [
            ops.linear_scan(inputs, inputs)[0],
            ops.causal_convolution(inputs, response),
            ops.nonlinear_scan(inputs, square, square)[0],
            layer(inputs, mask=mask),
        ]

    def with_gradient(inputs):
        outputs, pull_back = jax.vjp(run, inputs)
        return *outputs, *pull_back(outputs)

    got = with_gradient(inputs)
    with jax.disable_jit(False):
        program = jax.jit(with_gradient)
        assert "@keras_linrec_scan(" in program.lower(inputs).as_text()
        expected = program(inputs)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-6


def test_float64_is_computed_in_float64(numbers):
    with jax.enable_x64(True):
        decay = jnp.full((1,), 0.9, "float64")
        inputs = jnp.ones((1, 100, 1), "float64")
        assert inputs.dtype == "float64"
        _, final_state = native.scan((decay,), (inputs,), (inputs[:, 0] * 0,))
        expected = (1 - 0.9**100) / 0.1
        assert abs(float(final_state[0][0, 0]) / expected - 1) < 1e-14


def test_the_chosen_kernel_runs(numbers):
    def program():
        run = jax.jit(lambda d, x: ops.linear_scan(d, x))
        return run.lower(jnp.ones(3), jnp.ones((2, 5, 3))).as_text()

    assert "@keras_linrec_scan(" in program()
    keras_linrec.config.set_kernel("associative")
    text = program()
    keras_linrec.config.set_kernel(None)
    assert "keras_linrec_scan" not in text


def test_only_what_the_gradient_reads_is_kept(numbers):
    inputs = uniform(numbers, BATCH, 50, FEATURES)
    response = uniform(numbers, FEATURES, 2, 50)
    mask = jnp.ones((BATCH, 50))

    def kept(function, *given):
        _, pull_back = jax.vjp(jax.jit(function), *given)
        return sum(part.size for part in jax.tree.leaves(pull_back))

    def move(inputs):
        return native.move_steps(inputs, mask, False, False)

    assert kept(move, inputs) == mask.size

    def convolve(inputs, response):
        linear = keras.activations.linear
        return native.causal_convolution(inputs, response, linear)

    found = kept(convolve, inputs, response)
    assert found == inputs.size + response.size
