"""The native kernels for states that pass through a sequence.

They are compared with `definitions.lssl` in float64, through the core with
plain NumPy arrays and through the current backend.
"""

from functools import partial

import keras
import numpy as np
import pytest
from autodiff import backend_gradients
from autodiff import compiled
from autodiff import gradient
from autodiff import relative_error
from autodiff import tensors
from autodiff import to_numpy
from definitions import lssl as definition
from needs_native import require_native
from test_native_impulse_response import system

from keras_linrec import kernels
from keras_linrec.kernels import carried_states as plain
from keras_linrec.kernels import varying_response
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import FLOAT64
from keras_linrec.kernels.native.call_encoding import bits_of

native = require_native()

# All sums are float64, so that only the rounding of results is left.
TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
SYSTEM = ("p", "d", "q", "t", "b", "timescale", "output_matrix")

# batch, time, features, channels, state
SIZES = [
    (1, 1, 1, 1, 1),
    (2, 7, 3, 2, 5),
    (5, 40, 2, 1, 33),
    (1, 300, 2, 1, 4),
    (5, 3, 17, 3, 2),
    (3, 64, 2, 1, 8),
]


def case_of(batch, time, features, channels, state):
    """Systems, lengths, inputs and states in float64."""
    generator = np.random.default_rng(1)
    inputs = generator.uniform(-1, 1, (batch, time, features))
    states = generator.uniform(-1, 1, (batch, features, state))
    lengths = np.array([time, time // 2, 0, 1, min(3, time)][:batch], "float64")
    inputs, states = (
        part.astype("float32").astype("float64") for part in (inputs, states)
    )
    systems = system("legs", features, channels, state, moved=0.1)
    return systems, lengths, inputs, states


def systems_of(p, d, q, t, b, timescale, alpha):
    """Abar and Bbar of every feature."""
    parts = zip("pdqt", (p, d, q, t))
    matrix = definition.transition({f"transition_{n}": w for n, w in parts})
    pairs = [definition.discretise(matrix, b, dt, alpha) for dt in timescale]
    return [np.stack(part) for part in zip(*pairs)]


def free_response(*arguments, time, alpha):
    *weights, rows, state = arguments
    transition, _ = systems_of(*weights, alpha)
    outputs = []
    for _ in range(time):
        state = np.einsum("fnm,bfm->bfn", transition, state)
        outputs.append(np.einsum("fcn,bfn->bfc", rows, state))
    return np.stack(outputs, axis=1)


def final_states(*arguments, lengths, alpha):
    *weights, _, inputs, state = arguments
    transition, input_vector = systems_of(*weights, alpha)
    for step in range(inputs.shape[1]):
        after = np.einsum("fnm,bfm->bfn", transition, state)
        after = after + inputs[:, step, :, None] * input_vector
        state = np.where(step < lengths[:, None, None], after, state)
    return state


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
        expected = np.sum(weights * define(*moved).imag) / 1e-30
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
    systems, lengths, inputs, states = case_of(*sizes)
    alpha, tolerance = 0.7, TOLERANCE[dtype]
    given = sizes, alpha, dtype

    arguments = [*systems, states]
    define = partial(free_response, time=sizes[1], alpha=alpha)
    expected = define(*arguments)
    weights = weights_like(expected)
    (outputs,) = call("free_response", arguments, [expected.shape], *given)
    assert relative_error(outputs, expected) < tolerance
    gradients = call(
        "free_response_backward",
        [*arguments, weights],
        shapes(arguments),
        *given,
    )
    assert_gradients(gradients, arguments, define, weights, tolerance)

    arguments = [*systems, inputs, states]
    define = partial(final_states, lengths=lengths, alpha=alpha)
    expected = define(*arguments)
    weights = weights_like(expected)
    all_arguments = [*systems, lengths, inputs, states]
    (got,) = call("final_states", all_arguments, [expected.shape], *given)
    assert relative_error(got, expected) < tolerance
    gradients = call(
        "final_states_backward",
        [*all_arguments, weights],
        shapes(arguments),
        *given,
    )
    assert_gradients(gradients, arguments, define, weights, tolerance)


def test_without_rows_features_or_channels_gradients_are_zero():
    for sizes in ((0, 5, 2, 1, 3), (2, 5, 0, 1, 3), (2, 5, 2, 0, 3)):
        batch, time, features, channels, state = sizes
        systems = system("legs", features, channels, state)
        states = np.zeros((batch, features, state))
        cotangents = np.zeros((batch, time, features, channels))
        arguments = [*systems, states]
        gradients = call(
            "free_response_backward",
            [*arguments, cotangents],
            shapes(arguments),
            sizes,
            0.5,
            "float32",
        )
        assert not any(slopes.any() for slopes in gradients)


def test_sizes_that_do_not_fit_are_named():
    for name in ("free_response", "final_states"):
        with pytest.raises(ValueError, match="sizes that fit together"):
            call(name, [], [], (2, 0, 2, 1, 3), 0.5, "float32")


# Through the backend.


def on_backend(kernel, alpha=0.7):
    """Both kernels as functions of all that has a gradient, and arguments."""
    systems, lengths, inputs, states = case_of(2, 37, 3, 2, 5)
    (given_lengths,) = tensors([lengths])

    def free(given):
        return [kernel.free_response(*given, 37, alpha)]

    def final(given):
        *systems, inputs, states = given
        lengths = given_lengths
        return [kernel.final_states(*systems, lengths, inputs, states, alpha)]

    return [
        (
            free,
            [*systems, states],
            partial(free_response, time=37, alpha=alpha),
        ),
        (
            final,
            [*systems, inputs, states],
            partial(final_states, lengths=lengths, alpha=alpha),
        ),
    ]


@pytest.mark.parametrize("which", [0, 1], ids=["free_response", "final_states"])
def test_the_kernel_equals_the_definition(which):
    kernel = kernels.registry.load("native")
    run, arguments, define = on_backend(kernel)[which]
    expected = define(*arguments)
    (got,) = to_numpy(compiled(run)(tensors(arguments)))
    assert relative_error(got, expected) < 1e-6
    weights = weights_like(expected)
    gradients = backend_gradients(run, arguments, [weights])
    assert_gradients(gradients, arguments, define, weights, 1e-6)


class Plain:
    """The plain forms, on plain steps."""

    steps = partial(varying_response.varying_response, native.scan)
    free_response = partial(plain.free_response, steps)
    final_states = partial(plain.final_states, steps)


@pytest.mark.parametrize("which", [0, 1], ids=["free_response", "final_states"])
def test_the_second_derivative_is_that_of_the_plain_form(which):
    def twice(kernel):
        run, arguments, _ = on_backend(kernel)[which]

        def squares(given):
            slopes = gradient(lambda t: keras.ops.sum(run(t)[0] ** 2))(given)
            return sum(keras.ops.sum(slope**2) for slope in slopes)

        return to_numpy(compiled(gradient(squares))(tensors(arguments)))

    for one, other in zip(twice(native), twice(Plain), strict=True):
        assert relative_error(one, other) < 1e-4


def test_only_the_native_kernel_carries_states():
    assert kernels.registry.load("native").final_states
    for name in ("associative", "sequential", "reference"):
        assert kernels.registry.load(name).final_states is None
