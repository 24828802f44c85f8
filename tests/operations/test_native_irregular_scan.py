"""The native response of structured systems to steps that differ in length.

It is compared with `definitions.lssl` in float64, through the core with plain
NumPy arrays and through the current backend.
"""

from functools import partial

import keras
import numpy as np
import pytest
from definitions import lssl as definition
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import relative_error
from support.autodiff import second_derivatives
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.core_calls import results_of
from support.needs_native import require_native
from support.needs_native import require_same_bits
from support.structured_systems import NAMES
from support.structured_systems import assert_slopes
from support.structured_systems import rounded
from support.structured_systems import system
from support.structured_systems import transition
from support.structured_systems import weights_of

from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.structured import irregular_scan as plain

native = require_native()
TORCH = keras.backend.backend() == "torch"

# All sums are float64, so that only the rounding of results is left.
TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
# The checkpoints are rounded too, and gradients may be small sums of large
# terms.
SLOPES = {"float32": 3e-6, "float64": 1e-11}
# After the system come time_deltas, resets, inputs and the state.
RESETS = len(NAMES) + 1

# batch, time, features, channels, state
SIZES = [
    (1, 1, 1, 1, 1),
    (2, 7, 3, 2, 5),
    (3, 20, 9, 1, 33),
    (1, 100, 2, 1, 4),
    (5, 3, 17, 3, 2),
]


def steps_of(batch, time, features, channels, state, measure="legs"):
    """Arguments in float64, with steps of length zero and resets."""
    weights = system(measure, features, channels, state, moved=0.1)
    generator = np.random.default_rng(1)
    lengths = generator.uniform(0, 2, (batch, time))
    lengths[:, 2::7] = 0.0
    resets = generator.uniform(size=(batch, time)) < 0.1
    inputs = generator.uniform(-1, 1, (batch, time, features))
    states = generator.uniform(-1, 1, (batch, features, state))
    steps = map(rounded, (lengths, resets, inputs, states))
    return [*weights, *steps]


def response_of(arguments, alpha):
    p, d, q, t, b, timescale, rows, lengths, resets, inputs, state = arguments
    matrix = transition(p, d, q, t)
    dtype = np.result_type(*arguments)
    state = np.array(state, dtype)
    outputs = np.zeros((*inputs.shape, rows.shape[1]), dtype)
    for row, step, feature in np.ndindex(inputs.shape):
        discrete, input_vector = definition.discretise(
            matrix, b, lengths[row, step] * timescale[feature], alpha
        )
        if resets[row, step]:
            state[row, feature] = 0.0
        change = input_vector * inputs[row, step, feature]
        state[row, feature] = discrete @ state[row, feature] + change
        outputs[row, step, feature] = rows[feature] @ state[row, feature]
    return [outputs, state]


def differentiated(arguments):
    """All but the resets."""
    return [*arguments[:RESETS], *arguments[RESETS + 1 :]]


def with_resets(given, resets):
    return [*given[:RESETS], resets, *given[RESETS:]]


def assert_gradients(gradients, arguments, weights, alpha, tolerance):
    def define(*moved):
        return response_of(with_resets(moved, arguments[RESETS]), alpha)

    given = differentiated(arguments)
    assert_slopes(gradients, given, define, weights, tolerance)


def core_results(arguments, alpha, block, dtype, weights):
    """Outputs and final state, and gradients."""
    call = Call("structured_scan_irregular", 0, (block, alpha))
    *results, kept = results_of(call, arguments, dtype)
    given = [*arguments, kept, *weights]
    return results, results_of(call.backward, given, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_core_equals_the_definition(sizes, dtype):
    arguments = steps_of(*sizes)
    for alpha, block in ((0.5, 8), (0.8, 3)):
        expected = response_of(arguments, alpha)
        weights = weights_of(expected)
        results, gradients = core_results(
            arguments, alpha, block, dtype, weights
        )
        for one, other in zip(results, expected):
            assert relative_error(one, other) < TOLERANCE[dtype]
        assert_gradients(gradients, arguments, weights, alpha, SLOPES[dtype])


def test_long_sequences_are_as_accurate():
    arguments = steps_of(1, 5000, 3, 1, 64)
    weights = weights_of([arguments[9][..., None], arguments[10]])
    results, gradients = core_results(arguments, 0.5, 35, "float32", weights)
    # In blocks of another length: without checkpoints but the first.
    expected = core_results(arguments, 0.5, 5000, "float64", weights)
    for one, other in zip((*results, *gradients), (*expected[0], *expected[1])):
        assert relative_error(one, other) < 1e-6


def test_without_rows_or_features_nothing_is_computed():
    for sizes in ((0, 5, 2, 1, 3), (2, 5, 0, 1, 3), (2, 5, 2, 0, 3)):
        arguments = steps_of(2, 5, 2, 1, 3)
        batch, time, features, channels, _ = sizes
        arguments[5] = arguments[5][:features]
        arguments[6] = arguments[6][:features, :channels]
        arguments[7:9] = (part[:batch] for part in arguments[7:9])
        arguments[9] = arguments[9][:batch, :, :features]
        arguments[10] = arguments[10][:batch, :features]
        weights = [np.zeros((*arguments[9].shape, channels)), arguments[10] * 0]
        _, gradients = core_results(arguments, 0.5, 8, "float32", weights)
        assert not any(slopes.any() for slopes in gradients)


def test_sizes_that_do_not_fit_are_named():
    for sizes in (
        (1, 2, 0, 2, 1, 3, 8, bits_of(0.5)),
        (1, 2, 5, 2, 1, 0, 8, bits_of(0.5)),
        # Blocks without steps.
        (1, 2, 7, 3, 2, 5, 0, bits_of(0.5)),
    ):
        with pytest.raises(ValueError, match="sizes that fit together"):
            core.call(
                "keras_linrec_structured_scan_irregular", 0, sizes, [], []
            )


THREADS = """
from operations import test_native_irregular_scan as tests
arguments = tests.steps_of(5, 30, 20, 2, 40)
weights = tests.weights_of(tests.response_of(arguments, 0.5))
outputs, gradients = tests.core_results(arguments, 0.5, 8, "float32", weights)
results = outputs + gradients
"""


@pytest.mark.skipif(
    not TORCH, reason="the core is the same under every backend"
)
@pytest.mark.rest
def test_any_number_of_threads_gives_the_same_bits():
    require_same_bits(THREADS)


# Through the backend.


def of_differentiated(function, arguments, alpha):
    """The function of all arguments but the resets."""
    (resets,) = tensors([arguments[RESETS]])

    def run(given):
        return function(*with_resets(given, resets), alpha)

    return run, differentiated(arguments)


def test_the_kernel_equals_the_definition():
    alpha = 0.8
    arguments = steps_of(2, 37, 3, 2, 5)
    run, given = of_differentiated(
        native.structured_scan_irregular, arguments, alpha
    )
    expected = response_of(arguments, alpha)
    for one, other in zip(to_numpy(compiled(run)(tensors(given))), expected):
        assert relative_error(one, other) < 1e-6
    weights = weights_of(expected)
    gradients = backend_gradients(run, given, weights)
    assert_gradients(gradients, arguments, weights, alpha, SLOPES["float32"])


def test_the_second_derivative_is_that_of_the_plain_form():
    arguments = steps_of(2, 5, 2, 1, 3)

    def twice(function):
        run, given = of_differentiated(function, arguments, 0.5)
        return second_derivatives(run, given)

    got = twice(native.structured_scan_irregular)
    expected = twice(partial(plain.structured_scan_irregular, native.scan))
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4


def test_what_is_not_a_number_ends_at_a_reset():
    arguments = steps_of(2, 12, 3, 1, 4)
    arguments[RESETS][:] = 0.0
    arguments[RESETS][0, 5] = 1.0
    expected = response_of(arguments, 0.5)
    arguments[9][0, 3] = np.nan
    run, given = of_differentiated(
        native.structured_scan_irregular, arguments, 0.5
    )
    outputs, states = to_numpy(run(tensors(given)))
    assert np.isnan(outputs[0, 3:5]).all()
    assert relative_error(outputs[0, 5:], expected[0][0, 5:]) < 1e-6
    assert relative_error(outputs[1], expected[0][1]) < 1e-6
    assert relative_error(states, expected[1]) < 1e-6
