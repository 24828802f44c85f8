"""The native impulse response of structured state-space systems.

It is compared with `definitions.lssl` in float64, through the core with plain
NumPy arrays and through the current backend.
"""

import keras
import numpy as np
import pytest
from definitions import lssl as definition
from support.autodiff import backend_gradients
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import require_native
from support.needs_native import require_same_bits

from keras_linrec import kernels
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import FLOAT64
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.operations import impulse_response as plain
from keras_linrec.ops.hippo import hippo

native = require_native()

# All sums are float64, so that only the rounding of results is left.
TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
NAMES = ("p", "d", "q", "t", "b", "timescale", "output_matrix")

# features, channels, state, time
SIZES = [
    (1, 1, 1, 1),
    (3, 2, 1, 63),
    (2, 1, 2, 2),
    (2, 3, 3, 1),
    (9, 2, 5, 63),
    (3, 2, 33, 40),
    (2, 1, 64, 784),
    (1, 2, 130, 50),
]


def system(measure, features, channels, state, moved=0.0, seed=0):
    """Arguments in float64: those of a measure, randomly perturbed."""
    generator = np.random.default_rng(seed)
    weights = [np.array(part) for part in hippo(measure, state)]
    weights = [
        part * (1 + moved * generator.uniform(-1, 1, part.shape))
        for part in weights
    ]
    if moved:
        weights[3][0, :-1] += generator.uniform(-0.3, 0.3, state - 1)
    steps = np.exp(generator.uniform(np.log(1e-3), np.log(1e-1), features))
    read_out = generator.uniform(-1, 1, (features, channels, state))
    given = (*weights, steps, read_out)
    # Rounded to float32, so that only the computation differs.
    return [part.astype("float32").astype("float64") for part in given]


def response_of(p, d, q, t, b, timescale, output_matrix, time, alpha):
    parts = zip("pdqt", (p, d, q, t))
    matrix = definition.transition({f"transition_{n}": w for n, w in parts})
    response = []
    for step, rows in zip(timescale, output_matrix):
        transition, state = definition.discretise(matrix, b, step, alpha)
        states = [state]
        for _ in range(time - 1):
            states.append(transition @ states[-1])
        response.append(rows @ np.stack(states, axis=-1))
    return np.stack(response)


def slope_of(arguments, index, direction, weights, time, alpha):
    """The derivative of sum(weights * response) along one direction."""
    # The complex-step derivative, which subtracts nothing.
    moved = list(arguments)
    moved[index] = moved[index] + 1e-30j * direction
    return np.sum(weights * response_of(*moved, time, alpha).imag) / 1e-30


def assert_gradients(gradients, arguments, weights, time, alpha, tolerance):
    generator = np.random.default_rng(7)
    for index, slopes in enumerate(gradients):
        for _ in range(3):
            direction = generator.choice([-1.0, 1.0], slopes.shape)
            if NAMES[index] == "t":
                # The last entries of the outer bands are not part of T.
                direction[[0, 2], -1] = 0.0
                assert not slopes[[0, 2], -1].any()
            expected = slope_of(
                arguments, index, direction, weights, time, alpha
            )
            error = abs(np.sum(slopes * direction) - expected)
            assert error <= tolerance * np.abs(slopes).sum(), NAMES[index]


def call(name, arrays, results, sizes, alpha, block, dtype):
    arrays = [np.ascontiguousarray(array, dtype) for array in arrays]
    core.call(
        f"keras_linrec_{name}",
        FLOAT64 * (dtype == "float64"),
        (*sizes, bits_of(alpha), block),
        [array.ctypes.data for array in arrays],
        [array.ctypes.data for array in results],
    )
    return results


def core_response(arguments, time, alpha=0.5, block=0, dtype="float32"):
    sizes = 1, *arguments[-1].shape, time
    result = np.full((*arguments[-1].shape[:2], time), np.nan, dtype)
    (response,) = call(
        "impulse_response", arguments, [result], sizes, alpha, block, dtype
    )
    return response


def core_gradients(arguments, weights, alpha=0.5, block=0, dtype="float32"):
    return call(
        "impulse_response_backward",
        [*arguments, weights],
        [np.full(array.shape, np.nan, dtype) for array in arguments],
        (1, *arguments[-1].shape, weights.shape[-1]),
        alpha,
        block,
        dtype,
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_core_equals_the_definition_either_way(sizes, dtype, alpha):
    features, channels, state, time = sizes
    arguments = system("legs", features, channels, state, moved=0.1)
    expected = response_of(*arguments, time, alpha)
    weights = np.random.default_rng(1).uniform(-1, 1, expected.shape)
    weights = weights.astype("float32").astype("float64")
    # As the core chooses, step by step, and in blocks of several lengths.
    for block in (0, -1, 1, 2, 16, 64):
        given = alpha, block, dtype
        response = core_response(arguments, time, *given)
        assert relative_error(response, expected) < TOLERANCE[dtype]
        gradients = core_gradients(arguments, weights, *given)
        assert_gradients(
            gradients, arguments, weights, time, alpha, TOLERANCE[dtype]
        )


@pytest.mark.parametrize("block", [-1, 0, 1, 16])
def test_the_gradient_of_c_alone_is_the_same(block):
    arguments = system("legs", 20, 2, 9, moved=0.1)
    weights = np.random.default_rng(1).uniform(-1, 1, (20, 2, 60))
    *_, expected = core_gradients(arguments, weights, block=block)
    arrays = [np.ascontiguousarray(a, "float32") for a in (*arguments, weights)]
    gradient = np.full_like(arrays[-2], np.nan)
    core.call(
        "keras_linrec_impulse_response_backward",
        0,
        (1, *arrays[-2].shape, 60, bits_of(0.5), block),
        [array.ctypes.data for array in arrays],
        [*[None] * 6, gradient.ctypes.data],
    )
    assert relative_error(gradient, expected) < 1e-6


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt"])
@pytest.mark.parametrize("moved", [0.0, 0.1, 0.3])
def test_it_is_accurate_far_from_the_measures_too(measure, moved):
    sizes = 2, 1, 64, 300
    if (measure, moved) == ("legs", 0.3):
        # Unstable: it grows to 1e20 over these steps.
        sizes = 2, 1, 64, 20
    arguments = system(measure, *sizes[:3], moved=moved)
    time = sizes[-1]
    expected = response_of(*arguments, time, 0.5)
    assert relative_error(core_response(arguments, time), expected) < 1e-6
    weights = np.random.default_rng(1).uniform(-1, 1, expected.shape)
    weights = weights.astype("float32").astype("float64")
    assert_gradients(
        core_gradients(arguments, weights), arguments, weights, time, 0.5, 1e-6
    )


def test_long_responses_are_as_accurate():
    # Two algorithms that share little code: step by step, and in blocks.
    arguments = system("legs", 17, 1, 256, moved=0.1)
    response = core_response(arguments, 5000, block=-1)
    expected = core_response(arguments, 5000, block=16, dtype="float64")
    assert relative_error(response, expected) < 1e-6
    weights = np.random.default_rng(1).uniform(-1, 1, response.shape)
    weights = weights.astype("float32")
    got = core_gradients(arguments, weights, block=-1)
    expected = core_gradients(arguments, weights, block=16, dtype="float64")
    for one, other in zip(got, expected):
        assert relative_error(one, other) < 1e-6


def test_without_features_or_channels_nothing_is_computed():
    for features, channels in ((0, 2), (2, 0)):
        arguments = system("legs", features, channels, 3)
        response = core_response(arguments, 5)
        assert response.shape == (features, channels, 5)
        gradients = core_gradients(arguments, response)
        assert not any(slopes.any() for slopes in gradients)


def test_sizes_that_do_not_fit_are_named():
    for sizes in ((1, 2, 1, 0, 5), (1, 2, 1, 3, 0)):
        with pytest.raises(ValueError, match="sizes that fit together"):
            call("impulse_response", [], [], sizes, 0.5, 0, "float32")
    with pytest.raises(ValueError, match="sizes that fit together"):
        # A block's length that is not a power of two.
        call("impulse_response", [], [], (1, 2, 1, 3, 5), 0.5, 3, "float32")


THREADS = """
import hashlib
from operations import test_native_impulse_response as tests
arguments = tests.system("legs", 40, 2, 40, moved=0.1)
results = []
for block in (-1, 16):
    response = tests.core_response(arguments, 300, block=block)
    results.append(response)
    results += tests.core_gradients(arguments, response, block=block)
print(hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest())
print(tests.core.description())
"""


@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="the core is the same under every backend",
)
@pytest.mark.rest
def test_any_number_of_threads_gives_the_same_bits():
    require_same_bits(THREADS)


# Through the backend.


def response_on_backend(time, alpha):
    kernel = kernels.registry.load("native")
    return lambda given: [kernel.impulse_response(*given, time, alpha)]


@pytest.mark.parametrize("time", [1, 2, 17, 40])
def test_the_plain_form_equals_the_definition(time):
    arguments = system("legs", 3, 2, 5, moved=0.1)
    expected = response_of(*arguments, time, 0.7)
    (response,) = to_numpy(
        [plain.impulse_response(native.scan, *tensors(arguments), time, 0.7)]
    )
    assert relative_error(response, expected) < 1e-5


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (5, 2, 3, 63), (2, 1, 33, 7)])
def test_the_kernel_equals_the_definition(sizes, alpha):
    *shape, time = sizes
    arguments = system("legs", *shape, moved=0.1)
    run = response_on_backend(time, alpha)
    expected = response_of(*arguments, time, alpha)
    (response,) = to_numpy(run(tensors(arguments)))
    assert relative_error(response, expected) < 1e-6
    weights = np.random.default_rng(1).uniform(-1, 1, expected.shape)
    weights = weights.astype("float32").astype("float64")
    gradients = backend_gradients(run, arguments, [weights])
    assert_gradients(gradients, arguments, weights, time, alpha, 1e-6)


def test_compiled_it_gives_the_same():
    arguments = tensors(system("legs", 2, 2, 5, moved=0.1))
    run = response_on_backend(20, 0.5)

    def slopes(given):
        return gradient(lambda t: keras.ops.sum(run(t)[0] ** 2))(given)

    for function in (run, slopes):
        got = to_numpy(compiled(function)(arguments))
        for one, other in zip(got, to_numpy(function(arguments)), strict=True):
            assert relative_error(one, other) < 1e-6


def compiled(function):
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.jit(function)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    # test_native_torch.py has the tests of `torch.compile`.
    return function


def test_the_second_derivative_is_that_of_the_plain_form():
    arguments = system("legs", 2, 2, 4, moved=0.1)

    def twice(run):
        def squares(given):
            slopes = gradient(lambda t: keras.ops.sum(run(t)[0] ** 2))(given)
            return sum(keras.ops.sum(slope**2) for slope in slopes)

        return to_numpy(gradient(squares)(tensors(arguments)))

    got = twice(response_on_backend(9, 0.5))
    expected = twice(
        lambda t: [plain.impulse_response(native.scan, *t, 9, 0.5)]
    )
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4


def test_only_the_native_kernel_has_an_impulse_response():
    assert kernels.registry.load("native").impulse_response
    for name in ("associative", "sequential", "reference"):
        assert kernels.registry.load(name).impulse_response is None
