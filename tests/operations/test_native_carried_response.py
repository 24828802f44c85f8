"""The native kernel for responses with states before and after them.

It is compared with `definitions.lssl` in float64, through the core with
plain NumPy arrays and through the current backend.
"""

from functools import partial

import numpy as np
import pytest
from definitions import lssl as definition
from operations.test_native_impulse_response import system
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import squared_slopes
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import require_native

from keras_linrec import kernels
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import FLOAT64
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.operations import carried_response as plain
from keras_linrec.kernels.operations import varying_response

native = require_native()

# In float32, states and outputs are sums of float32.
TOLERANCE = {"float32": 2e-6, "float64": 1e-11}
SYSTEM = ("p", "d", "q", "t", "b", "timescale", "output_matrix")

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
    inputs, states = (
        part.astype("float32").astype("float64") for part in (inputs, states)
    )
    systems = system("legs", features, channels, state, moved=0.1)
    return systems, lengths, resets.astype("float64"), inputs, states


def systems_of(p, d, q, t, b, timescale, alpha):
    """Abar and Bbar of every feature."""
    parts = zip("pdqt", (p, d, q, t))
    matrix = definition.transition({f"transition_{n}": w for n, w in parts})
    pairs = [definition.discretise(matrix, b, dt, alpha) for dt in timescale]
    return [np.stack(part) for part in zip(*pairs)]


def response(*arguments, lengths, resets, alpha):
    *weights, rows, inputs, state = arguments
    transition, input_vector = systems_of(*weights, alpha)
    outputs = []
    for step in range(inputs.shape[1]):
        is_step = (step < lengths)[:, None, None]
        before = np.where(resets[:, step, None, None] > 0, 0.0, state)
        after = np.einsum("fnm,bfm->bfn", transition, before)
        after = after + inputs[:, step, :, None] * input_vector
        state = np.where(is_step, after, state)
        output = np.einsum("fcn,bfn->bfc", rows, after)
        outputs.append(np.where(is_step, output, 0.0))
    return [np.stack(outputs, axis=1), state]


def assert_gradients(gradients, arguments, define, weights, tolerance):
    """Along a random direction of each argument."""
    generator = np.random.default_rng(7)
    for index, slopes in enumerate(gradients):
        direction = generator.choice([-1.0, 1.0], slopes.shape)
        if index == SYSTEM.index("t"):
            # The last entries of the outer bands are not part of T.
            direction[[0, 2], -1] = 0.0
            assert not slopes[[0, 2], -1].any()
        moved = list(arguments)
        # The complex-step derivative, which subtracts nothing.
        moved[index] = moved[index] + 1e-30j * direction
        expected = sum(
            np.sum(weight * result.imag) / 1e-30
            for weight, result in zip(weights, define(*moved), strict=True)
        )
        error = abs(np.sum(slopes * direction) - expected)
        assert error <= tolerance * (np.abs(slopes).sum() + 1e-3), index


def call(name, arrays, shapes, sizes, alpha, dtype):
    arrays = [np.ascontiguousarray(array, dtype) for array in arrays]
    results = [np.full(shape, np.nan, dtype) for shape in shapes]
    core.call(
        f"keras_linrec_{name}",
        FLOAT64 * (dtype == "float64"),
        (1, *sizes, bits_of(alpha)),
        [array.ctypes.data for array in arrays],
        [array.ctypes.data for array in results],
    )
    return results


def weights_like(array):
    weights = np.random.default_rng(2).uniform(-1, 1, array.shape)
    return weights.astype("float32").astype("float64")


def shapes(arrays):
    return [array.shape for array in arrays]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_core_equals_the_definition(sizes, dtype):
    systems, lengths, resets, inputs, states = case_of(*sizes)
    alpha, tolerance = 0.7, TOLERANCE[dtype]
    given = sizes, alpha, dtype
    arguments = [*systems, inputs, states]
    define = partial(response, lengths=lengths, resets=resets, alpha=alpha)
    expected = define(*arguments)
    all_arguments = [*systems, lengths, resets, inputs, states]
    results = call("carried_response", all_arguments, shapes(expected), *given)
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < tolerance
    # Outputs and states apart, or the larger would hide the other.
    for weights in (
        [weights_like(expected[0]), 0 * expected[1]],
        [0 * expected[0], weights_like(expected[1])],
    ):
        gradients = call(
            "carried_response_backward",
            [*all_arguments, *weights],
            shapes(arguments),
            *given,
        )
        assert_gradients(gradients, arguments, define, weights, tolerance)


def test_a_group_does_not_see_the_one_before():
    sizes, alpha = (2, 20, 2, 1, 3), 0.5
    systems, _, resets, inputs, states = case_of(*sizes)
    # The second has rows that end earlier, and no outputs behind them.
    groups = [
        [*systems, np.array(lengths), resets, inputs, states]
        for lengths in ([20.0, 20.0], [3.0, 0.0])
    ]
    together = [np.stack(parts).astype("float32") for parts in zip(*groups)]
    shapes_of_both = [(2, 2, 20, 2, 1), (2, 2, 2, 3)]
    results = [np.full(shape, np.nan, "float32") for shape in shapes_of_both]
    core.call(
        "keras_linrec_carried_response",
        0,
        (2, *sizes, bits_of(alpha)),
        [array.ctypes.data for array in together],
        [array.ctypes.data for array in results],
    )
    for group, arguments in enumerate(groups):
        alone = call(
            "carried_response",
            arguments,
            [shape[1:] for shape in shapes_of_both],
            sizes,
            alpha,
            "float32",
        )
        for one, other in zip(results, alone, strict=True):
            assert (one[group] == other).all()


def test_a_nan_stops_at_a_reset():
    sizes, alpha = (2, 50, 2, 1, 3), 0.5
    systems, _, _, inputs, states = case_of(*sizes)
    resets, lengths = np.zeros((2, 50)), np.array([50.0, 50.0])
    resets[0, 21] = 1.0
    inputs[0, 20] = np.nan
    arguments = [*systems, lengths, resets, inputs, states]
    given = sizes, alpha, "float32"
    results = call(
        "carried_response", arguments, [(2, 50, 2, 1), states.shape], *given
    )
    outputs, final_state = results
    # It leaves the steps before it as they were, those of its block too.
    assert np.isnan(outputs[0, 20]).all()
    assert np.isfinite(outputs[0, :20]).all()
    assert np.isfinite(outputs[0, 21:]).all() and np.isfinite(outputs[1]).all()
    assert np.isfinite(final_state).all()
    slopes = call(
        "carried_response_backward",
        [*arguments, np.ones_like(outputs), np.ones_like(final_state)],
        shapes([*systems, inputs, states]),
        *given,
    )
    assert np.isfinite(slopes[-2]).all()


@pytest.mark.parametrize("where", ["inputs", "cotangents"])
def test_a_nan_in_a_row_leaves_the_others_to_the_last_bit(where):
    sizes, alpha = (5, 64, 3, 2, 8), 0.5
    systems, lengths, resets, inputs, states = case_of(*sizes)
    given = sizes, alpha, "float32"
    generator = np.random.default_rng(3)
    cotangents = [
        generator.uniform(-1, 1, (5, 64, 3, 2)),
        generator.uniform(-1, 1, states.shape),
    ]

    def run():
        arguments = [*systems, lengths, resets, inputs, states]
        outputs = call(
            "carried_response", arguments, shapes(cotangents), *given
        )
        slopes = call(
            "carried_response_backward",
            [*arguments, *cotangents],
            shapes([*systems, inputs, states]),
            *given,
        )
        return outputs, slopes

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
    assert np.isnan(spoilt_slopes[SYSTEM.index("output_matrix")]).all()


@pytest.mark.parametrize("sizes", [(3, 40, 2, 1, 6), (2, 11, 17, 1, 64)])
def test_what_lies_behind_the_end_of_a_row_is_not_read(sizes):
    """In blocks and step by step."""
    alpha = 0.5
    systems, lengths, resets, inputs, states = case_of(*sizes)
    given = sizes, alpha, "float64"
    cotangents = [
        np.random.default_rng(3).uniform(-1, 1, sizes[:4]),
        np.ones_like(states),
    ]

    def gradients():
        arguments = [*systems, lengths, resets, inputs, states, *cotangents]
        return call(
            "carried_response_backward",
            arguments,
            shapes([*systems, inputs, states]),
            *given,
        )

    expected = gradients()
    inputs[1, int(lengths[1]) :] = np.inf
    cotangents[0][1, int(lengths[1]) :] = np.nan
    for one, other in zip(gradients(), expected, strict=True):
        assert relative_error(one, other) < 1e-11


def test_without_rows_features_or_channels_gradients_are_zero():
    for sizes in ((0, 5, 2, 1, 3), (2, 5, 0, 1, 3), (2, 5, 2, 0, 3)):
        batch, time, features, channels, state = sizes
        systems, lengths, resets, inputs, states = case_of(*sizes)
        cotangents = [np.zeros((*inputs.shape, channels)), 0 * states]
        gradients = call(
            "carried_response_backward",
            [*systems, lengths, resets, inputs, states, *cotangents],
            shapes([*systems, inputs, states]),
            sizes,
            0.5,
            "float32",
        )
        assert not any(slopes.any() for slopes in gradients)


def test_an_unused_block_that_would_overflow_does_no_harm():
    # Unstable: Abar^64 is beyond float32, Abar^3 is not.
    sizes, alpha = (1, 3, 1, 1, 1), 0.5
    one = np.ones(1)
    t = np.array([[0.0], [1.0], [0.0]])
    systems = [one, one, one, t, one, 0.9 * one, np.ones((1, 1, 1))]
    inputs, states = np.ones((1, 3, 1)), np.ones((1, 1, 1))
    lengths, resets = np.array([3.0]), np.zeros((1, 3))
    arguments = [*systems, inputs, states]
    define = partial(response, lengths=lengths, resets=resets, alpha=alpha)
    expected = define(*arguments)
    all_arguments = [*systems, lengths, resets, inputs, states]
    gradients = call(
        "carried_response_backward",
        [*all_arguments, *map(np.ones_like, expected)],
        shapes(arguments),
        sizes,
        alpha,
        "float32",
    )
    assert all(np.isfinite(slopes).all() for slopes in gradients)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="sizes that fit together"):
        call("carried_response", [], [], (2, 0, 2, 1, 3), 0.5, "float32")


# Through the backend.


def on_backend(kernel, alpha=0.7):
    """The kernel as a function of all that has a gradient, and arguments."""
    systems, lengths, resets, inputs, states = case_of(2, 37, 3, 2, 5)
    places = tensors([lengths, resets])

    def run(given):
        *systems, inputs, states = given
        return list(
            kernel.carried_response(*systems, *places, inputs, states, alpha)
        )

    define = partial(response, lengths=lengths, resets=resets, alpha=alpha)
    return run, [*systems, inputs, states], define


def test_the_kernel_equals_the_definition():
    kernel = kernels.registry.load("native")
    run, arguments, define = on_backend(kernel)
    expected = define(*arguments)
    results = to_numpy(compiled(run)(tensors(arguments)))
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < 2e-6
    weights = [weights_like(result) for result in expected]
    gradients = backend_gradients(run, arguments, weights)
    assert_gradients(gradients, arguments, define, weights, 2e-6)


class Plain:
    """The plain form, on plain steps."""

    steps = partial(varying_response.varying_response, native.scan)
    carried_response = partial(plain.carried_response, steps)


@pytest.mark.rest
def test_the_second_derivative_is_that_of_the_plain_form():
    def twice(kernel):
        run, arguments, _ = on_backend(kernel)
        second = compiled(gradient(squared_slopes(run)))
        return to_numpy(second(tensors(arguments)))

    for one, other in zip(twice(native), twice(Plain), strict=True):
        assert relative_error(one, other) < 1e-4


def test_only_the_native_kernel_has_a_carried_response():
    assert kernels.registry.load("native").carried_response
    for name in ("associative", "sequential", "reference"):
        assert kernels.registry.load(name).carried_response is None
