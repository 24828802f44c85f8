"""The native kernel for responses with states before and after them.

It is compared with `definitions.lssl` in float64, through the core with
plain NumPy arrays and through the current backend.
"""

from functools import partial

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
from support.structured_systems import NAMES
from support.structured_systems import assert_slopes
from support.structured_systems import rounded
from support.structured_systems import system
from support.structured_systems import transition
from support.structured_systems import weights_of

from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import FROM_ZEROS
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.structured import irregular_scan
from keras_linrec.kernels.operations.structured import scan as plain

native = require_native()

# In float32, states and outputs are sums of float32.
TOLERANCE = {"float32": 2e-6, "float64": 1e-11}

NO_STATE = np.zeros((0, 0, 0))

# batch, time, features, channels, state
SIZES = [
    (1, 1, 1, 1, 1),
    (2, 7, 3, 2, 5),
    (5, 40, 2, 1, 33),
    (1, 300, 2, 1, 4),
    (5, 3, 17, 3, 2),
    (3, 64, 2, 1, 8),
    # Several chunks of pieces.
    (3, 1000, 1, 2, 3),
    # Step by step.
    (1, 4, 16, 2, 40),
    (2, 11, 17, 1, 64),
]


def case_of(batch, time, features, channels, state):
    """Systems, lengths, resets, inputs and states in float64."""
    generator = np.random.default_rng(1)
    inputs = generator.uniform(-1, 1, (batch, time, features))
    states = generator.uniform(-1, 1, (batch, features, state))
    lengths = np.array([time, time // 2, 0, 1, min(3, time)][:batch], "float64")
    # None in the first row, and in the others before the first step, within
    # blocks and at their ends, one after another and behind the last step.
    resets = generator.uniform(size=(batch, time)) < 0.1
    resets[:1] = False
    resets[1:, 0] = resets[1:, -1] = True
    resets[1:, 8:10] = True
    inputs, states = map(rounded, (inputs, states))
    systems = system("legs", features, channels, state, moved=0.1)
    return systems, lengths, resets.astype("float64"), inputs, states


def systems_of(p, d, q, t, b, timescale, alpha):
    """Abar and Bbar of every feature."""
    matrix = transition(p, d, q, t)
    pairs = [definition.discretise(matrix, b, dt, alpha) for dt in timescale]
    return [np.stack(part) for part in zip(*pairs)]


def response(*arguments, lengths, resets, alpha):
    *weights, rows, inputs, state = arguments
    discrete, input_vector = systems_of(*weights, alpha)
    outputs = []
    for step in range(inputs.shape[1]):
        is_step = (step < lengths)[:, None, None]
        before = np.where(resets[:, step, None, None] > 0, 0.0, state)
        after = np.einsum("fnm,bfm->bfn", discrete, before)
        after = after + inputs[:, step, :, None] * input_vector
        state = np.where(is_step, after, state)
        output = np.einsum("fcn,bfn->bfc", rows, after)
        outputs.append(np.where(is_step, output, 0.0))
    return [np.stack(outputs, axis=1), state]


def call_of(alpha=0.5, flags=0):
    return Call("structured_scan", flags, (alpha,))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_core_equals_the_definition(sizes, dtype):
    systems, lengths, resets, inputs, states = case_of(*sizes)
    alpha, tolerance = 0.7, TOLERANCE[dtype]
    call, arguments = call_of(alpha), [*systems, inputs, states]
    define = partial(response, lengths=lengths, resets=resets, alpha=alpha)
    expected = define(*arguments)
    all_arguments = [*systems, lengths, resets, inputs, states]
    results = results_of(call, all_arguments, dtype)
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < tolerance
    # Outputs and states apart, or the larger would hide the other.
    for weights in (
        [*weights_of(expected[:1]), 0 * expected[1]],
        [0 * expected[0], *weights_of(expected[1:])],
    ):
        given = [*all_arguments, *weights]
        gradients = results_of(call.backward, given, dtype)
        assert_slopes(gradients, arguments, define, weights, tolerance)


# By a convolution, in one run of steps and in several, and in blocks.
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "sizes", [(3, 21, 17, 2, 40), (5, 70, 5, 1, 64), (2, 7, 3, 2, 5)]
)
def test_from_zeros_the_core_equals_the_definition(sizes, dtype):
    systems, lengths, resets, inputs, states = case_of(*sizes)
    tolerance = TOLERANCE[dtype]
    call, arguments = call_of(0.7, FROM_ZEROS), [*systems, inputs]
    resets = 0 * resets

    def define(*arguments):
        return response(
            *arguments, 0 * states, lengths=lengths, resets=resets, alpha=0.7
        )

    expected = define(*arguments)
    all_arguments = [*systems, lengths, resets, inputs, NO_STATE]
    results = results_of(call, all_arguments, dtype)
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < tolerance
    for weights in (
        [*weights_of(expected[:1]), 0 * expected[1]],
        [0 * expected[0], *weights_of(expected[1:])],
    ):
        given = [*all_arguments, *weights]
        *gradients, d_state = results_of(call.backward, given, dtype)
        assert d_state.size == 0
        assert_slopes(gradients, arguments, define, weights, tolerance)


def test_from_zeros_equals_a_state_of_zeros():
    """Over so many runs that their sum settles in between."""
    systems, lengths, resets, inputs, states = case_of(5, 530, 16, 1, 128)
    lengths[0], resets = 530 - 7, 0 * resets
    steps = [*systems, lengths, resets, inputs]
    with_state = [*steps, 0 * states]
    expected = results_of(call_of(), with_state, "float32")
    from_zeros = call_of(flags=FROM_ZEROS)
    results = results_of(from_zeros, [*steps, NO_STATE], "float32")
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < 2e-6
    weights = weights_of(expected)
    *slopes, _ = results_of(
        call_of().backward, [*with_state, *weights], "float32"
    )
    given = [*steps, NO_STATE, *weights]
    *others, _ = results_of(from_zeros.backward, given, "float32")
    for one, other in zip(others, slopes, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("sizes", [(3, 21, 17, 2, 40), (2, 7, 3, 2, 5)])
def test_from_zeros_resets_drop_the_state(sizes):
    systems, lengths, resets, inputs, states = case_of(*sizes)
    expected = response(
        *systems,
        inputs,
        0 * states,
        lengths=lengths,
        resets=resets,
        alpha=0.5,
    )
    given = [*systems, lengths, resets, inputs, NO_STATE]
    results = results_of(call_of(flags=FROM_ZEROS), given, "float64")
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < 1e-11


def test_a_group_does_not_see_the_one_before():
    systems, _, resets, inputs, states = case_of(2, 20, 2, 1, 3)
    # The second has rows that end earlier, and no outputs behind them.
    groups = [
        [*systems, np.array(lengths), resets, inputs, states]
        for lengths in ([20.0, 20.0], [3.0, 0.0])
    ]
    together = [np.stack(parts) for parts in zip(*groups)]
    results = results_of(call_of(), together, "float32")
    for group, arguments in enumerate(groups):
        alone = results_of(call_of(), arguments, "float32")
        for one, other in zip(results, alone, strict=True):
            assert (one[group] == other).all()


def test_a_nan_stops_at_a_reset():
    systems, _, _, inputs, states = case_of(2, 50, 2, 1, 3)
    resets, lengths = np.zeros((2, 50)), np.array([50.0, 50.0])
    resets[0, 21] = 1.0
    inputs[0, 20] = np.nan
    arguments = [*systems, lengths, resets, inputs, states]
    outputs, final_state = results_of(call_of(), arguments, "float32")
    # It leaves the steps before it as they were, those of its block too.
    assert np.isnan(outputs[0, 20]).all()
    assert np.isfinite(outputs[0, :20]).all()
    assert np.isfinite(outputs[0, 21:]).all() and np.isfinite(outputs[1]).all()
    assert np.isfinite(final_state).all()
    given = [*arguments, np.ones_like(outputs), np.ones_like(final_state)]
    slopes = results_of(call_of().backward, given, "float32")
    assert np.isfinite(slopes[-2]).all()


@pytest.mark.parametrize("where", ["inputs", "cotangents"])
def test_a_nan_in_a_row_leaves_the_others_to_the_last_bit(where):
    systems, lengths, resets, inputs, states = case_of(5, 64, 3, 2, 8)
    generator = np.random.default_rng(3)
    cotangents = [
        generator.uniform(-1, 1, (5, 64, 3, 2)),
        generator.uniform(-1, 1, states.shape),
    ]

    def run():
        arguments = [*systems, lengths, resets, inputs, states]
        given = [*arguments, *cotangents]
        return (
            results_of(call_of(), arguments, "float32"),
            results_of(call_of().backward, given, "float32"),
        )

    (outputs, final_state), slopes = run()
    spoilt = {"inputs": inputs, "cotangents": cotangents[0]}[where]
    spoilt[1, 20] = np.nan
    spoilt[3] = np.inf  # a row of a single step
    (spoilt_outputs, spoilt_state), spoilt_slopes = run()
    good = [0, 2, 4]
    for one, other in (
        (spoilt_outputs, outputs),
        (spoilt_state, final_state),
        *zip(spoilt_slopes[-2:], slopes[-2:], strict=True),
    ):
        np.testing.assert_array_equal(one[good], other[good])
    bad = spoilt_outputs if where == "inputs" else spoilt_slopes[-2]
    assert np.isnan(bad[1]).any()
    # The gradients of what the rows share know of it.
    assert np.isnan(spoilt_slopes[NAMES.index("output_matrix")]).all()


@pytest.mark.parametrize(
    ("sizes", "flags"),
    [
        ((3, 40, 2, 1, 6), 0),
        ((2, 11, 17, 1, 64), 0),
        ((3, 21, 17, 2, 40), FROM_ZEROS),
    ],
)
def test_what_lies_behind_the_end_of_a_row_is_not_read(sizes, flags):
    """In blocks, step by step, and by a convolution."""
    systems, lengths, resets, inputs, states = case_of(*sizes)
    if flags:
        resets = 0 * resets
    call, before = call_of(flags=flags), NO_STATE if flags else states
    cotangents = [
        np.random.default_rng(3).uniform(-1, 1, sizes[:4]),
        np.ones_like(states),
    ]

    def gradients():
        arguments = [*systems, lengths, resets, inputs, before, *cotangents]
        return results_of(call.backward, arguments, "float64")

    expected = gradients()
    inputs[1, int(lengths[1]) :] = np.inf
    cotangents[0][1, int(lengths[1]) :] = np.nan
    for one, other in zip(gradients(), expected, strict=True):
        if one.size:
            assert relative_error(one, other) < 1e-11


def test_without_rows_features_or_channels_gradients_are_zero():
    for sizes in ((0, 5, 2, 1, 3), (2, 5, 0, 1, 3), (2, 5, 2, 0, 3)):
        systems, *steps, inputs, states = case_of(*sizes)
        cotangents = [np.zeros((*inputs.shape, sizes[3])), 0 * states]
        given = [*systems, *steps, inputs, states, *cotangents]
        gradients = results_of(call_of().backward, given, "float32")
        assert not any(slopes.any() for slopes in gradients)


def test_an_unused_block_that_would_overflow_does_no_harm():
    # Unstable: Abar^64 is beyond float32, Abar^3 is not.
    one = np.ones(1)
    t = np.array([[0.0], [1.0], [0.0]])
    systems = [one, one, one, t, one, 0.9 * one, np.ones((1, 1, 1))]
    inputs, states = np.ones((1, 3, 1)), np.ones((1, 1, 1))
    lengths, resets = np.array([3.0]), np.zeros((1, 3))
    arguments = [*systems, lengths, resets, inputs, states]
    cotangents = [np.ones((1, 3, 1, 1)), np.ones((1, 1, 1))]
    given = [*arguments, *cotangents]
    gradients = results_of(call_of().backward, given, "float32")
    assert all(np.isfinite(slopes).all() for slopes in gradients)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="sizes that fit together"):
        sizes = (1, 2, 0, 2, 1, 3, bits_of(0.5))
        core.call("keras_linrec_structured_scan", 0, sizes, [], [])


# Through the backend.


def on_backend(kernel, sizes=(2, 37, 3, 2, 5), from_zeros=False):
    """The kernel as a function of all that has a gradient, and arguments."""
    systems, lengths, resets, inputs, states = case_of(*sizes)
    if from_zeros:
        resets = 0 * resets
    places = tensors([lengths, resets])

    def run(given):
        *systems, inputs, state = [*given, None][:9]
        return list(
            kernel.structured_scan(*systems, *places, inputs, state, 0.7)
        )

    def define(*given):
        given = [*given, 0 * states][:9]
        return response(*given, lengths=lengths, resets=resets, alpha=0.7)

    arguments = [*systems, inputs, states][: 8 if from_zeros else 9]
    return run, arguments, define


@pytest.mark.parametrize("from_zeros", [False, True])
def test_the_kernel_equals_the_definition(from_zeros):
    sizes = (3, 21, 17, 2, 40) if from_zeros else (2, 37, 3, 2, 5)
    run, arguments, define = on_backend(native, sizes, from_zeros)
    expected = define(*arguments)
    results = to_numpy(compiled(run)(tensors(arguments)))
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < 2e-6
    weights = weights_of(expected)
    gradients = backend_gradients(run, arguments, weights)
    assert_slopes(gradients, arguments, define, weights, 2e-6)


class Plain:
    """The plain form, on plain steps."""

    steps = partial(irregular_scan.structured_scan_irregular, native.scan)
    structured_scan = partial(plain.structured_scan, steps)


@pytest.mark.rest
@pytest.mark.parametrize("from_zeros", [False, True])
def test_the_second_derivative_is_that_of_the_plain_form(from_zeros):
    def twice(kernel):
        run, arguments, _ = on_backend(kernel, from_zeros=from_zeros)
        return second_derivatives(run, arguments)

    for one, other in zip(twice(native), twice(Plain), strict=True):
        assert relative_error(one, other) < 1e-4
