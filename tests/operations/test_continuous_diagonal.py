"""Steps of diagonal systems in continuous time, against NumPy in float64."""

import keras
import numpy as np
import pytest
from definitions.s5 import discretise as defined
from support.autodiff import backend_gradients
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.conformance_cases import float64

from keras_linrec.ops import continuous_diagonal

EVERY_METHOD = pytest.mark.parametrize("method", ["zoh", "bilinear"])
# From slow to fast, undamped, without imaginary part, and far beyond a step.
SYSTEMS = np.array(
    [-0.5, -0.5 + 1j, -1e-4 + 300j, 2j, -3e-6 + 1e-6j, -1e-12, -40, -500 + 9j]
)
STEPS = np.array([1e-3, 0.1, 1.0, 2.0])[:, None]


def parts(numbers):
    return [numbers.real.copy(), numbers.imag.copy()]


def flat(decay, gain):
    return [*decay, *gain]


@EVERY_METHOD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_keep_the_digits_of_the_definition(method, dtype):
    eigenvalues = [part.astype(dtype) for part in parts(SYSTEMS)]
    steps = (STEPS * np.ones(len(SYSTEMS))).astype(dtype)
    with float64():
        got = continuous_diagonal.discretise(
            tuple(map(keras.ops.convert_to_tensor, eigenvalues)),
            keras.ops.convert_to_tensor(steps),
            method,
        )
        real, imag, *gain = map(keras.ops.convert_to_numpy, flat(*got))
    real_part, imag_part = (part.astype("float64") for part in eigenvalues)
    steps = steps.astype("float64")
    decay, scale = defined(real_part + 1j * imag_part, steps, method)
    # An angle of b is rounded by b times this.
    eps = np.finfo(dtype).eps
    allowed = 4 * eps * (1 + np.abs(imag_part * steps))
    assert (np.abs(real + 1j * imag - decay) <= allowed).all()
    error = np.abs(gain[0] + 1j * gain[1] - scale)
    assert (error <= 2 * allowed * np.maximum(np.abs(scale), eps)).all()


@EVERY_METHOD
def test_gradients_of_steps(method):
    systems = SYSTEMS[[0, 1, 3, 6]]
    arguments = [*parts(systems), STEPS * np.ones(4)]

    def run(tensors):
        real, imag, steps = tensors
        return flat(
            *continuous_diagonal.discretise((real, imag), steps, method)
        )

    def define(arrays):
        real, imag, steps = arrays
        decay, gain = defined(real + 1j * imag, steps, method)
        return [*parts(decay), *parts(gain)]

    weights = [
        np.random.default_rng(index).standard_normal((4, 4))
        for index in range(4)
    ]
    got = backend_gradients(run, arguments, weights)
    expected = numerical_gradients(define, arguments, weights)
    for one, other in zip(got, expected):
        assert relative_error(one, other) < 1e-4


@EVERY_METHOD
def test_a_step_of_no_time_and_a_system_at_rest_have_their_limits(method):
    """gain = dt (1 + lambda dt / 2 + ...), and the slopes of that."""
    real, imag = np.array([-0.5, 0.0, 0.0]), np.array([2.0, 0.0, 0.0])
    steps = np.array([0.0, 0.0, 0.7])

    def run(tensors):
        real, imag, steps = tensors
        decay, gain = continuous_diagonal.discretise(
            (real, imag), steps, method
        )
        return [decay[0], gain[0], gain[1]]

    with float64():
        values = run(
            list(map(keras.ops.convert_to_tensor, (real, imag, steps)))
        )
        values = list(map(keras.ops.convert_to_numpy, values))
    np.testing.assert_allclose(values[0], 1)
    np.testing.assert_allclose(values[1], steps)
    np.testing.assert_allclose(values[2], 0)
    ones, zeros = np.ones(3), np.zeros(3)
    of_gain = backend_gradients(run, [real, imag, steps], [zeros, ones, zeros])
    np.testing.assert_allclose(of_gain[0], steps**2 / 2, atol=1e-6)
    np.testing.assert_allclose(of_gain[1], 0, atol=1e-6)
    np.testing.assert_allclose(of_gain[2], 1, atol=1e-6)


# One step, a whole block, one more than blocks, and several thousand.
@pytest.mark.parametrize("time", [1, 2, 128, 257, 5000])
def test_exponential_sums_are_those_of_every_power(time):
    generator = np.random.default_rng(time)
    real = -generator.uniform(1e-4, 0.1, (3, 8))
    imag = generator.uniform(-2, 2, (3, 8))
    factors = generator.standard_normal((2, 3, 2, 8))
    rounded = [part.astype("float32") for part in (real, imag, *factors)]
    got = continuous_diagonal.exponential_sums(
        tuple(map(keras.ops.convert_to_tensor, rounded[:2])),
        tuple(map(keras.ops.convert_to_tensor, rounded[2:])),
        time,
    )
    real, imag, *factors = (part.astype("float64") for part in rounded)
    powers = np.exp((real + 1j * imag)[..., None] * np.arange(time))
    factors = factors[0] + 1j * factors[1]
    expected = np.einsum("fcn,fnl->fcl", factors, powers).real
    assert got.shape == (3, 2, time)
    assert relative_error(keras.ops.convert_to_numpy(got), expected) < 1e-5


@pytest.mark.parametrize("time", [1, 2, 128, 257])
def test_sums_over_time_are_those_of_every_step(time):
    generator = np.random.default_rng(time)
    real = -generator.uniform(1e-3, 0.1, (3, 8)).astype("float32")
    imag = generator.uniform(-2, 2, (3, 8)).astype("float32")
    inputs = generator.standard_normal((2, time, 3)).astype("float32")
    got = continuous_diagonal.sums_over_time(
        tuple(map(keras.ops.convert_to_tensor, (real, imag))),
        keras.ops.convert_to_tensor(inputs),
    )
    got = [keras.ops.convert_to_numpy(part) for part in got]
    angles = real.astype("float64") + 1j * imag
    powers = np.exp(angles[..., None] * np.arange(time))
    expected = np.einsum("btf,fnt->bfn", inputs, powers)
    assert relative_error(got[0] + 1j * got[1], expected) < 1e-5


def test_gradients_of_exponential_sums():
    generator = np.random.default_rng(0)
    arguments = [
        -generator.uniform(0.01, 1, (2, 3)),
        generator.uniform(-2, 2, (2, 3)),
        *generator.standard_normal((2, 2, 1, 3)),
    ]

    def run(tensors):
        real, imag, *factors = tensors
        return [continuous_diagonal.exponential_sums((real, imag), factors, 9)]

    def define(arrays):
        real, imag, *factors = arrays
        powers = np.exp((real + 1j * imag)[..., None] * np.arange(9))
        factors = factors[0] + 1j * factors[1]
        return [np.einsum("fcn,fnl->fcl", factors, powers).real]

    weights = [generator.standard_normal((2, 1, 9))]
    got = backend_gradients(run, arguments, weights)
    expected = numerical_gradients(define, arguments, weights)
    for one, other in zip(got, expected):
        assert relative_error(one, other) < 1e-4
