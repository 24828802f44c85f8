"""The native impulse response of structured state-space systems.

It is compared with `definitions.lssl` in float64, through the core with plain
NumPy arrays and through the current backend.
"""

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import second_derivatives
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.core_calls import results_of
from support.core_calls import write
from support.needs_native import require_native
from support.needs_native import require_same_bits
from support.programs import COMPILED
from support.programs import program
from support.structured_systems import assert_slopes
from support.structured_systems import response_of
from support.structured_systems import system
from support.structured_systems import weights_of

from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations import impulse_response as plain

native = require_native()

# All sums are float64, so that only the rounding of results is left.
TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
# The place of a block's steps among the core's sizes. For 0 it chooses them.
BLOCK = 6

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


def assert_gradients(gradients, arguments, weights, time, alpha, tolerance):
    def define(*moved):
        return [response_of(*moved, time, alpha)]

    assert_slopes(
        gradients, arguments, define, [weights], tolerance, 3, floor=0.0
    )


def call_of(time, alpha=0.5):
    return Call("impulse_response", 0, (time, alpha))


def core_response(arguments, time, alpha=0.5, block=0, dtype="float32"):
    call, changed = call_of(time, alpha), {BLOCK: block}
    (response,) = results_of(call, arguments, dtype, changed)
    return response


def core_gradients(arguments, weights, alpha=0.5, block=0, dtype="float32"):
    call, changed = call_of(weights.shape[-1], alpha), {BLOCK: block}
    return results_of(call.backward, [*arguments, weights], dtype, changed)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_core_equals_the_definition_either_way(sizes, dtype, alpha):
    features, channels, state, time = sizes
    arguments = system("legs", features, channels, state, moved=0.1)
    expected = response_of(*arguments, time, alpha)
    (weights,) = weights_of([expected], seed=1)
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
    given, gradient = [*arguments, weights], np.full_like(expected, np.nan)
    call, changed = call_of(60).backward, {BLOCK: block}
    write(call, given, [None] * 6 + [gradient], changed)
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
    (weights,) = weights_of([expected], seed=1)
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
    for sizes in (
        (1, 2, 1, 0, 5, bits_of(0.5), 0),
        (1, 2, 1, 3, 0, bits_of(0.5), 0),
        # A block's length that is not a power of two.
        (1, 2, 1, 3, 5, bits_of(0.5), 3),
    ):
        with pytest.raises(ValueError, match="sizes that fit together"):
            core.call("keras_linrec_impulse_response", 0, sizes, [], [])


THREADS = """
from operations import test_native_impulse_response as tests
arguments = tests.system("legs", 40, 2, 40, moved=0.1)
results = []
for block in (-1, 16):
    response = tests.core_response(arguments, 300, block=block)
    results.append(response)
    results += tests.core_gradients(arguments, response, block=block)
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
    return lambda given: [native.impulse_response(*given, time, alpha)]


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
    (weights,) = weights_of([expected], seed=1)
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
    # test_native_torch.py has the tests of `torch.compile`.
    if keras.backend.backend() == "torch":
        return function
    return program(function, COMPILED)


def test_the_second_derivative_is_that_of_the_plain_form():
    arguments = system("legs", 2, 2, 4, moved=0.1)

    got = second_derivatives(response_on_backend(9, 0.5), arguments)
    expected = second_derivatives(
        lambda t: [plain.impulse_response(native.scan, *t, 9, 0.5)], arguments
    )
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4
