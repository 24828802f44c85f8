"""The causal convolution, by whichever kernel, against sums in float64."""

from functools import partial

import keras
import numpy as np
import pytest
from definitions import convolution as definition
from selection import COMPILING
from support.autodiff import BACKEND
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.conformance_cases import float64
from support.needs_native import each_kernel

from keras_linrec import activations
from keras_linrec.ops import causal_convolution

# batch, time, features, channels, taps
SIZES = [
    (1, 1, 1, 1, 1),
    (3, 2, 2, 1, 2),
    (5, 63, 1, 1, 63),
    (2, 17, 37, 2, 9),
    (9, 100, 3, 3, 100),
]


kernel = each_kernel("native", "associative")


def numbers(batch, time, features, channels, taps):
    random = np.random.default_rng([time, features])
    return (
        random.standard_normal((batch, time, features)),
        random.standard_normal((features, channels, taps)),
        random.standard_normal((batch, time, features, channels)),
    )


def run(arguments, activation=None):
    return [causal_convolution(*arguments, activation)]


@pytest.mark.parametrize(
    ("sizes", "activation"),
    [*((sizes, "linear") for sizes in SIZES), (SIZES[3], "gelu")],
    ids=str,
)
def test_outputs_and_gradients_equal_their_definition(
    sizes, activation, kernel
):
    inputs, response, weights = numbers(*sizes)
    activated = partial(run, activation=activation)
    (got,) = to_numpy(compiled(activated)(tensors([inputs, response])))
    expected = definition.causal_convolution(inputs, response, activation)
    assert relative_error(got, expected) < 1e-6
    got = backend_gradients(activated, [inputs, response], [weights])
    expected = definition.gradients(inputs, response, weights, activation)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-6


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize(
    "activation",
    # The kernel has no softplus.
    [activations.leaky_relu, keras.layers.LeakyReLU(0.3), "softplus"],
    ids=str,
)
def test_any_activation_follows_the_convolution(activation, kernel):
    inputs, response, weights = numbers(2, 12, 3, 2, 12)

    def apart(arguments):
        return [activations.get(activation)(*run(arguments))]

    given = [inputs, response]
    together = partial(run, activation=activation)
    (got,), (expected,) = (
        to_numpy(f(tensors(given))) for f in (together, apart)
    )
    assert relative_error(got, expected) < 1e-6
    for one, other in zip(
        backend_gradients(together, given, [weights]),
        backend_gradients(apart, given, [weights]),
        strict=True,
    ):
        assert relative_error(one, other) < 2e-6


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_gradient_alone_is_the_same_as_both(wanted, kernel):
    inputs, response, weights = numbers(2, 12, 3, 2, 12)
    given = [inputs, response]
    both = backend_gradients(partial(run, activation="gelu"), given, [weights])

    def alone(arguments):
        pair = tensors(given)
        pair[wanted] = arguments[0]
        return run(pair, "gelu")

    (got,) = backend_gradients(alone, [given[wanted]], [weights])
    assert relative_error(got, both[wanted]) < 1e-6


@pytest.mark.weekly(*COMPILING)
def test_second_derivatives(kernel):
    # sum(c * d/du sum(w * (R * u))) is the sum of w times R convolved with c.
    inputs, response, weights = numbers(2, 9, 3, 2, 7)
    (directions,) = tensors([np.random.default_rng(1).normal(size=(2, 9, 3))])
    (factors,) = tensors([weights])

    def mixed(given):
        def weighted(inner):
            # Squared, so that no second derivative is zero.
            return keras.ops.sum(factors * keras.ops.square(*run(inner)))

        return keras.ops.sum(gradient(weighted)(given)[0] * directions)

    got = to_numpy(compiled(gradient(mixed))(tensors([inputs, response])))
    outputs = definition.causal_convolution(inputs, response)
    moved = definition.causal_convolution(
        *map(np.asarray, (to_numpy([directions])[0], response))
    )
    by_inputs, _ = definition.gradients(inputs, response, 2 * weights * moved)
    _, first = definition.gradients(inputs, response, 2 * weights * moved)
    _, second = definition.gradients(
        to_numpy([directions])[0], response, 2 * weights * outputs
    )
    assert relative_error(got[0], by_inputs) < 1e-5
    assert relative_error(got[1], first + second) < 1e-5


@pytest.mark.weekly(*COMPILING)
def test_second_derivatives_of_an_activated_convolution(kernel):
    given = numbers(2, 9, 3, 2, 7)
    directions = tensors(numbers(2, 9, 3, 2, 7)[:2])
    (factors,) = tensors(given[2:])

    def mixed(convolve):
        def function(arguments):
            def weighted(inner):
                return keras.ops.sum(factors * convolve(inner))

            return sum(
                keras.ops.sum(slope * direction)
                for slope, direction in zip(
                    gradient(weighted)(arguments), directions
                )
            )

        return to_numpy(compiled(gradient(function))(tensors([*given[:2]])))

    got = mixed(lambda arguments: run(arguments, "tanh")[0])
    expected = mixed(lambda arguments: keras.ops.tanh(run(arguments)[0]))
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.weekly(*COMPILING)
def test_features_and_rows_do_not_mix(kernel):
    inputs, response, _ = numbers(3, 20, 5, 1, 20)
    (whole,) = to_numpy(run(tensors([inputs, response])))
    inputs[1, 0, 2] = np.nan
    (got,) = to_numpy(run(tensors([inputs, response])))
    touched = np.isnan(got)
    assert touched[1, :, 2].all()
    assert touched.sum() == 20
    assert np.array_equal(got[~touched], whole[~touched])


OUTLIERS = [30.0, 1e3, 1e6, 1e30, np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_an_outlier_leaves_earlier_outputs_and_their_gradients(
    activation, kernel
):
    plain, response, weights = numbers(2, 90, 3, 2, 90)
    (weights,) = tensors([weights[:, :40]])

    def earlier(given):
        (outputs,) = run(given, activation)
        return keras.ops.sum(weights * outputs[:, :40])

    activated = compiled(partial(run, activation=activation))
    differentiated = compiled(gradient(earlier))
    (expected,) = to_numpy(activated(tensors([plain, response])))
    slopes = to_numpy(differentiated(tensors([plain, response])))
    for outlier in OUTLIERS:
        inputs = plain.copy()
        inputs[1, 40, 2] = outlier
        (got,) = to_numpy(activated(tensors([inputs, response])))
        assert relative_error(got[1, :40, 2], expected[1, :40, 2]) < 1e-6
        assert relative_error(got[1, :, :2], expected[1, :, :2]) < 1e-6
        assert relative_error(got[0], expected[0]) < 1e-6
        got_slopes = to_numpy(differentiated(tensors([inputs, response])))
        for one, other in zip(got_slopes, slopes, strict=True):
            assert relative_error(one, other) < 2e-6


@pytest.mark.parametrize("outlier", OUTLIERS)
def test_outputs_after_an_outlier_equal_the_sums(outlier, kernel):
    inputs, response, _ = numbers(2, 40, 3, 2, 40)
    # A second one, larger still, in the same sequence.
    inputs[1, 20, 2], inputs[1, 30, 2] = outlier, -100 * outlier
    (got,) = to_numpy(compiled(run)(tensors([inputs, response])))
    with np.errstate(invalid="ignore"):
        expected = definition.causal_convolution(inputs, response)
    for part in (slice(0, 20), slice(20, 30), slice(30, 40)):
        if part.start and not np.isfinite(outlier):
            assert np.isnan(got[1, part, 2]).all()
            continue
        assert relative_error(got[1, part, 2], expected[1, part, 2]) < 2e-6


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("scale", [1e3, 1e30, np.inf])
def test_a_sequence_that_becomes_large_and_stays_so_leaves_earlier_outputs(
    scale, kernel
):
    inputs, response, _ = numbers(1, 64, 2, 1, 64)
    (expected,) = to_numpy(run(tensors([inputs, response])))
    inputs[:, 40:] *= 1e3 * scale
    (got,) = to_numpy(run(tensors([inputs, response])))
    assert relative_error(got[:, :40], expected[:, :40]) < 1e-6


# Of each step: 2e4 and 8e9 over all 100.
GROWTHS = [1.1, 1.26, -1.26]


def test_a_response_that_grows_leaves_earlier_outputs(kernel):
    plain, _, _ = numbers(1, 100, 3, 1, 100)
    response = np.array(GROWTHS)[:, None, None] ** np.arange(100)
    activated = compiled(partial(run, activation="gelu"))
    for activation, call in (("linear", compiled(run)), ("gelu", activated)):
        expected = definition.causal_convolution(plain, response, activation)
        broken = plain.copy()
        broken[0, 20] = np.nan
        for inputs, steps in ((plain, 100), (broken, 20)):
            (got,) = to_numpy(call(tensors([inputs, response])))
            # Of the outputs so far, and not of those of the row.
            for part in (slice(0, 20), slice(20, 60), slice(60, 100)):
                if part.start < steps:
                    got_part, part = got[:, part], expected[:, part]
                    assert relative_error(got_part, part) < 2e-6
        assert np.isnan(got[0, 20:]).all()


def test_slopes_follow_a_response_that_grows(kernel):
    inputs, _, weights = numbers(1, 40, 3, 1, 40)
    response = np.array(GROWTHS)[:, None, None] ** np.arange(40)
    # The slope of gelu depends on the outputs, and is zero at large ones.
    activated = partial(run, activation="gelu")
    weights[:, 12:] = 0
    got = backend_gradients(activated, [inputs, response], [weights])
    expected = definition.gradients(inputs, response, weights, "gelu")
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 2e-6


@pytest.mark.parametrize("spike", [-1e4, 1e8, 1e12])
def test_outputs_long_after_an_outlier_equal_the_sums(spike, kernel):
    inputs, _, _ = numbers(1, 200, 3, 1, 200)
    inputs[0, [50, 110, 170]] = spike
    steps = np.arange(200)
    # The last two have forgotten it after 3 and 50 steps.
    response = np.stack(
        [0.5**steps * np.cos(steps), steps < 3, 0.2**steps], axis=0
    )
    response[0, 50:] = 0
    response = response[:, None, :].astype("float64")
    (got,) = to_numpy(compiled(run)(tensors([inputs, response])))
    given = inputs.astype("float32"), response.astype("float32")
    expected = definition.causal_convolution(*given)
    for part in (slice(0, 50), slice(102, 110), slice(162, 170)):
        assert np.abs(got - expected)[0, part].max() < 1e-5


@pytest.mark.parametrize(
    ("dtype", "growth", "most"),
    [
        # Not cut, as docs/limits says.
        ("float32", 1e3, 2e-4),
        ("float32", 7e3, 2e-3),
        ("float32", 2e4, 1e-6),
        ("float64", 5e8, 1e-6),
        ("float64", 1e10, 1e-14),
    ],
)
def test_what_a_sequence_that_becomes_louder_moves(dtype, growth, most, kernel):
    if BACKEND == "jax" and dtype == "float64":
        pytest.skip("float64 is off in JAX")
    inputs, _, _ = numbers(1, 400, 2, 1, 400)
    inputs[:, 200:] *= growth
    response = np.broadcast_to(0.9 ** np.arange(400), (2, 1, 400))
    given = [
        keras.ops.convert_to_tensor(values, dtype)
        for values in (inputs, response)
    ]
    (got,) = to_numpy(compiled(run)(given))
    expected = definition.causal_convolution(
        *(each.astype(dtype) for each in (inputs, response))
    )
    assert relative_error(got[:, :200], expected[:, :200]) < most


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize(
    ("of_inputs", "of_response"), [(3e37, 1.0), (1.0, 3e37), (1e19, 1e18)]
)
def test_outputs_near_the_largest_number_are_finite(
    of_inputs, of_response, kernel
):
    inputs = np.full((1, 50, 1), of_inputs)
    response = of_response * 0.5 ** np.arange(50.0)[None, None]
    (got,) = to_numpy(run(tensors([inputs, response])))
    expected = definition.causal_convolution(inputs, response)
    assert relative_error(got, expected) < 1e-6


def test_taps_beyond_the_last_step_have_no_effect(kernel):
    inputs, response, weights = numbers(2, 6, 3, 2, 9)
    got = backend_gradients(run, [inputs, response], [weights])
    (outputs,) = to_numpy(run(tensors([inputs, response])))
    (shorter,) = to_numpy(run(tensors([inputs, response[..., :6]])))
    assert np.array_equal(outputs, shorter)
    expected = definition.gradients(inputs, response, weights)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-6
    assert not got[1][..., 6:].any()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="sizes are known there")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_taps_beyond_an_unknown_last_step_have_no_effect(jit_compile, kernel):
    import tensorflow as tf

    inputs, response, _ = numbers(2, 6, 3, 2, 9)
    given = tensors([inputs, response])
    signature = [tf.TensorSpec([None, None, 3]), tf.TensorSpec([3, 2, None])]
    traced = tf.function(causal_convolution, signature, jit_compile=jit_compile)
    expected = definition.causal_convolution(inputs, response)
    assert relative_error(traced(*given).numpy(), expected) < 1e-6


@pytest.mark.weekly(*COMPILING)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="others have no such cond")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_second_derivatives_within_a_function(jit_compile, kernel):
    import tensorflow as tf

    given = tensors(numbers(2, 9, 3, 2, 7)[:2])

    def penalty(inputs, response):
        with tf.GradientTape() as outer:
            outer.watch((inputs, response))
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(causal_convolution(inputs, response) ** 3)
            slope = inner.gradient(loss, inputs)
            norm = tf.reduce_sum(slope**2)
        return outer.gradient(norm, (inputs, response))

    traced = tf.function(penalty, jit_compile=jit_compile)(*given)
    for one, other in zip(traced, penalty(*given), strict=True):
        assert relative_error(one.numpy(), other.numpy()) < 1e-5


@pytest.mark.parametrize(
    ("of_inputs", "of_response"),
    [
        ("float32", "float16"),
        ("float16", "float32"),
        ("bfloat16", "bfloat16"),
        ("float32", "int32"),
        ("float64", "float32"),
        ("float32", "float64"),
    ],
)
def test_operands_of_other_dtypes_are_cast(of_inputs, of_response, kernel):
    if BACKEND == "jax" and "float64" in (of_inputs, of_response):
        pytest.skip("float64 is off in JAX")
    given = [
        keras.ops.cast(values, dtype)
        for values, dtype in (
            ([[[1.0], [1.0], [1.0], [1.0]]], of_inputs),
            ([[[1.0, 2.0]]], of_response),
        )
    ]
    (got,) = run(given)
    wanted = "float64" if "float64" in (of_inputs, of_response) else "float32"
    assert keras.backend.standardize_dtype(got.dtype) == wanted
    (outputs,) = to_numpy([got])
    assert np.allclose(outputs[0, :, 0, 0], [1, 3, 3, 3], atol=1e-5)


def test_the_gradient_of_a_response_in_half_precision_is_its_own(kernel):
    inputs, response = (
        keras.ops.cast(values, dtype)
        for values, dtype in (
            (np.ones((1, 4, 1)), "float32"),
            (np.ones((1, 1, 2)), "float16"),
        )
    )

    def total(given):
        return keras.ops.sum(causal_convolution(inputs, given[0]))

    (got,) = to_numpy(gradient(total)([response]))
    assert got.tolist() == [[[4.0, 3.0]]]


@pytest.mark.parametrize(
    "sizes", [(0, 5, 3, 2, 5), (2, 5, 3, 0, 5), (2, 5, 0, 1, 5)], ids=str
)
def test_of_nothing_there_is_nothing(sizes, kernel):
    inputs, response, weights = numbers(*sizes)
    (got,) = to_numpy(run(tensors([inputs, response])))
    assert got.shape == weights.shape
    for slope in backend_gradients(run, [inputs, response], [weights]):
        assert not slope.any()


@pytest.mark.weekly(*COMPILING)
@pytest.mark.skipif(BACKEND == "tensorflow", reason="it has no such vmap")
def test_vmap_equals_a_loop(kernel):
    several = [numbers(2, 12, 3, 2, 12) for _ in range(3)]
    for index, values in enumerate(several):
        values[0][:] += index
    inputs, responses = (
        tensors([np.stack([values[i] for values in several])])[0]
        for i in (0, 1)
    )
    if BACKEND == "jax":
        from jax import vmap
    else:
        from torch import vmap

    for axes in ((0, 0), (0, None), (None, 0)):
        given = [
            each if axis == 0 else each[0]
            for each, axis in zip((inputs, responses), axes)
        ]
        got = to_numpy([vmap(causal_convolution, axes)(*given)])[0]
        for index in range(3):
            one = [
                each[index] if axis == 0 else each
                for each, axis in zip(given, axes)
            ]
            assert relative_error(got[index], to_numpy(run(one))[0]) < 1e-6


@pytest.mark.parametrize(
    ("inputs", "response", "message"),
    [
        ((2, 5), (3, 1, 5), r"`inputs` should have the shape"),
        ((2, 0, 3), (3, 1, 5), r"at least one time step"),
        ((2, 5, 3), (2, 1, 5), r"`response` should have .* 3 features"),
        ((2, 5, 3), (3, 1, 0), r"at least one tap"),
    ],
)
def test_shapes_that_do_not_fit_are_named(inputs, response, message):
    with pytest.raises(ValueError, match=message):
        causal_convolution(np.zeros(inputs, "float32"), np.zeros(response))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)]
)
def test_both_precisions_run_where_float64_is_on(dtype, tolerance, kernel):
    inputs, response, _ = numbers(2, 100, 3, 2, 50)
    expected = definition.causal_convolution(inputs, response)
    with float64():
        given = (
            keras.ops.convert_to_tensor(part, dtype)
            for part in (inputs, response)
        )
        outputs = compiled(lambda given: causal_convolution(*given))(
            list(given)
        )
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype
        assert relative_error(to_numpy([outputs])[0], expected) < tolerance
