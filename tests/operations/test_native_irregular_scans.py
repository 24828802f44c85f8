"""The native scans whose steps differ in length.

Those of structured systems are compared with `definitions.lssl`, of diagonal
ones with matrix exponentials and solved 2 x 2 systems, and of oscillators with
their own equations, in float64, through the core with plain NumPy arrays and
through the current backend.
"""

from functools import partial
from typing import NamedTuple

import keras
import numpy as np
import pytest
from definitions import lssl as definition
from scipy.linalg import expm
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import relative_error
from support.autodiff import second_derivatives
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.core_calls import results_of
from support.needs_native import require_native
from support.needs_native import require_same_bits
from support.structured_systems import BANDS
from support.structured_systems import NAMES
from support.structured_systems import assert_slopes
from support.structured_systems import rounded
from support.structured_systems import system
from support.structured_systems import transition
from support.structured_systems import weights_of

from keras_linrec import ops
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import BILINEAR
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations import diagonal_scan_irregular as diagonal
from keras_linrec.kernels.operations import (
    oscillator_scan_irregular as oscillator,
)
from keras_linrec.kernels.operations.structured import irregular_scan

native = require_native()
TORCH = keras.backend.backend() == "torch"

# All sums are float64: what is left is the rounding of results, of checkpoints
# and of states between steps; and that of the definitions in float64.
TOLERANCE = {"float32": 3e-7, "float64": 2e-13}
SLOPES = {"float32": 1e-6, "float64": 1e-12}


class Scan(NamedTuple):
    """An operation: its arguments, resets among them, and its definition."""

    call: Call
    arguments: list
    define: object
    kernel: object  # the arguments without resets, and these -> tensors
    plain: object
    resets: int  # the place of the resets
    entering: int  # and of what enters at a step
    tolerance: dict = TOLERANCE
    slopes: dict = SLOPES
    bands: int | None = None  # the place of a structured system's T


def resets_of(steps):
    resets = np.random.default_rng(3).uniform(size=steps) < 0.1
    resets[:, 4:5] |= np.arange(len(resets))[:, None] == 0
    return rounded(resets)


# Structured systems.


def defined_structured(*arguments, alpha):
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


def structured(batch, time, features, channels, state, alpha=0.5, block=8):
    weights = system("legs", features, channels, state, moved=0.1)
    generator = np.random.default_rng(1)
    lengths = generator.uniform(0, 2, (batch, time))
    lengths[:, 2::7] = 0.0
    resets = generator.uniform(size=(batch, time)) < 0.1
    inputs = generator.uniform(-1, 1, (batch, time, features))
    states = generator.uniform(-1, 1, (batch, features, state))
    place = len(NAMES) + 1

    def run(function, given, resets):
        return function(*given[:place], resets, *given[place:], alpha)

    return Scan(
        Call("structured_scan_irregular", 0, (block, alpha)),
        [*weights, *map(rounded, (lengths, resets, inputs, states))],
        partial(defined_structured, alpha=alpha),
        partial(run, native.structured_scan_irregular),
        partial(
            run, partial(irregular_scan.structured_scan_irregular, native.scan)
        ),
        place,
        place + 1,
        # Checkpoints are rounded too, and gradients may be small sums of large
        # terms.
        {"float32": 1e-6, "float64": 1e-11},
        {"float32": 3e-6, "float64": 1e-11},
        BANDS,
    )


# Diagonal systems.


# Of any size: none, small enough for a series, fast, slow, and growing.
RATES = (
    0,
    -1e-3 + 1e-4j,
    -0.5 + 30j,
    -4,
    0.05 - 0.6j,
    -1e-5 + 9e-3j,
    -60 + 2j,
)


def defined_diagonals(
    real, imag, c, c_imag, lengths, resets, inputs, *state, bilinear
):
    """z' = lambda z + e as real systems of two numbers."""
    size, features = real.shape
    batch, time, parts, _ = inputs.shape
    dtype = np.result_type(real, imag, c, c_imag, lengths, inputs, *state)
    z = np.stack(state, axis=-1).astype(dtype)
    block = np.stack(
        [np.stack([real, -imag], -1), np.stack([imag, real], -1)], -2
    )
    outputs = np.zeros((batch, time, c.shape[0], features), dtype)
    for t in range(time):
        z = np.where(resets[:, t, None, None, None] > 0, 0.0, z)
        drive = np.zeros((batch, size, features, 2), dtype)
        for part in range(parts):
            drive[..., part] = inputs[:, t, part, None]
        length = lengths[:, t, None, None, None]
        if bilinear:
            half = 0.5 * length[..., None] * block
            right = z + (half @ z[..., None])[..., 0] + length * drive
            z = np.linalg.solve(np.eye(2) - half, right[..., None])[..., 0]
        else:
            # exp(dt [[block, drive], [0, 0]]) takes (z, 1) over the step.
            whole = np.zeros((batch, size, features, 3, 3), dtype)
            whole[..., :2, :2] = length[..., None] * block
            whole[..., :2, 2] = length * drive
            moved = expm(whole)
            z = (moved[..., :2, :2] @ z[..., None])[..., 0] + moved[..., :2, 2]
        found = c[None] * z[:, None, ..., 0] - c_imag[None] * z[:, None, ..., 1]
        outputs[:, t] = found.sum(axis=2)
    return [outputs, z[..., 0], z[..., 1]]


def diagonals(
    batch, time, parts, channels, size, features, bilinear=False, block=8
):
    generator = np.random.default_rng(1)

    def uniform(*shape):
        return rounded(generator.uniform(-1, 1, shape))

    rates = np.resize(RATES, (size, features))
    lengths = rounded(generator.uniform(0, 0.5, (batch, time)))
    lengths[:, 2::7] = 0.0
    kernel, state = (channels, size, features), (batch, size, features)
    arguments = [
        rounded(rates.real),
        rounded(rates.imag),
        uniform(*kernel),
        uniform(*kernel),
        lengths,
        resets_of((batch, time)),
        uniform(batch, time, parts, features),
        uniform(*state),
        uniform(*state),
    ]

    def run(function, given, resets):
        *system, lengths, inputs, real, imag = given
        outputs, state = function(
            system[:2],
            system[2:],
            lengths,
            resets,
            inputs,
            (real, imag),
            bilinear,
        )
        return [outputs, *state]

    return Scan(
        Call(
            "diagonal_scan_irregular",
            COMPLEX + RESETS + BILINEAR * bilinear,
            (block,),
        ),
        arguments,
        partial(defined_diagonals, bilinear=bilinear),
        partial(run, native.diagonal_scan_irregular),
        partial(run, partial(diagonal.diagonal_scan_irregular, native.scan)),
        5,
        6,
    )


# Oscillators.


def defined_oscillators(dt, a, s, b, b_imag, resets, x, x_imag, z, z_imag):
    positions, speeds = zip(
        defined_part(dt, a, s, b, resets, x, z),
        defined_part(dt, a, s, b_imag, resets, x_imag, z_imag),
    )
    return [*positions, *speeds]


def defined_part(dt, a, s, b, resets, x, z):
    every = []
    for t in range(dt.shape[1]):
        x, z = (np.where(resets[:, t, None] > 0, 0.0, part) for part in (x, z))
        z = s[:, t] * (z + dt[:, t] * (b[:, t] - a[:, t] * x))
        x = x + dt[:, t] * z
        every.append((x, z))
    return [np.stack(part, axis=1) for part in zip(*every)]


def oscillators(batch, time, size):
    generator = np.random.default_rng(2)

    def uniform(low, high, *shape):
        return rounded(generator.uniform(low, high, shape))

    steps, row = (batch, time, size), (batch, size)
    arguments = [
        uniform(0, 0.5, *steps),
        uniform(0, 2, *steps),
        uniform(0.9, 1, *steps),
        uniform(-1, 1, *steps),
        uniform(-1, 1, *steps),
        resets_of((batch, time)),
        *(uniform(-1, 1, *row) for _ in range(4)),
    ]

    def run(function, given, resets):
        *system, force, force_imag, x, x_imag, z, z_imag = given
        positions, speeds = function(
            *system, (force, force_imag), resets, (x, x_imag), (z, z_imag)
        )
        return [*positions, *speeds]

    return Scan(
        Call("oscillator_scan_irregular", COMPLEX + RESETS),
        arguments,
        defined_oscillators,
        partial(run, native.oscillator_scan_irregular),
        partial(run, oscillator.oscillator_scan_irregular),
        5,
        3,
    )


SCANS = {
    "one of everything": lambda: diagonals(1, 1, 1, 1, 1, 1),
    "two of some": lambda: diagonals(1, 1, 1, 1, 2, 2),
    "shares of rows": lambda: diagonals(130, 3, 1, 1, 2, 9),
    "eight features": lambda: diagonals(2, 17, 1, 2, 7, 8),
    "nine features": lambda: diagonals(2, 17, 2, 1, 3, 9, block=5),
    "bilinear": lambda: diagonals(3, 16, 2, 3, 7, 5, bilinear=True),
    "bilinear, real": lambda: diagonals(1, 9, 1, 1, 2, 17, bilinear=True),
    "whole blocks": lambda: diagonals(2, 24, 1, 1, 4, 3),
    "an oscillator": lambda: oscillators(1, 1, 1),
    "oscillators": lambda: oscillators(3, 30, 65),
    "structured": lambda: structured(2, 37, 3, 2, 5, 0.8),
    **{
        f"structured, {sizes} in blocks of {block}": partial(
            structured, *sizes, alpha, block
        )
        for sizes in (
            (1, 1, 1, 1, 1),
            (2, 7, 3, 2, 5),
            (3, 20, 9, 1, 33),
            (1, 100, 2, 1, 4),
            (5, 3, 17, 3, 2),
        )
        for alpha, block in ((0.5, 8), (0.8, 3))
    },
}
EVERY_SCAN = pytest.mark.parametrize("name", SCANS)


def is_diagonal(scan):
    return scan.call.name == "diagonal_scan_irregular"


def without_resets(scan):
    given = list(scan.arguments)
    del given[scan.resets]
    return given


def defined_without_resets(scan):
    def define(*given):
        given = list(given)
        given.insert(scan.resets, scan.arguments[scan.resets])
        return scan.define(*given)

    return define


def assert_slopes_of(scan, gradients, weights, tolerance):
    assert_slopes(
        gradients,
        without_resets(scan),
        defined_without_resets(scan),
        weights,
        tolerance,
        # The definition of structured systems takes long.
        directions=2 if scan.bands is None else 1,
        bands=scan.bands,
    )


def quantities(scan, arguments):
    """Flat arguments as those of the call: pairs where they are complex."""
    given, found = list(arguments), []
    for quantity in scan.call.operation.arguments:
        parts = quantity.parts(scan.call.flags)
        found.append(tuple(given[:parts]) if parts == 2 else given[0])
        del given[:parts]
    return found


def flat(results):
    return [
        part
        for one in results
        for part in (one if isinstance(one, (list, tuple)) else [one])
    ]


def core_results(scan, dtype, weights):
    """Results that have cotangents, and gradients."""
    call, given = scan.call, quantities(scan, scan.arguments)
    results = results_of(call, given, dtype)
    operation = call.operation
    names = [argument.name for argument in operation.arguments]
    known = dict(zip(names, given))
    known |= {one.name: part for one, part in zip(operation.results, results)}
    remaining = list(weights)
    for result in operation.differentiated:
        parts = result.parts(call.flags)
        cotangent = tuple(remaining[:parts]) if parts == 2 else remaining[0]
        known[f"d_{result.name}"] = cotangent
        del remaining[:parts]
    backward = call.backward
    arguments = [known[one.name] for one in backward.operation.arguments]
    slopes = flat(results_of(backward, arguments, dtype))
    return flat(results)[: len(weights)], slopes


@pytest.mark.parametrize("dtype", TOLERANCE)
@EVERY_SCAN
def test_the_core_equals_the_definition(name, dtype):
    scan = SCANS[name]()
    expected = scan.define(*scan.arguments)
    weights = weights_of(expected)
    results, gradients = core_results(scan, dtype, weights)
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one, other) < scan.tolerance[dtype]
    assert_slopes_of(scan, gradients, weights, scan.slopes[dtype])


def test_without_rows_features_or_states_nothing_is_computed():
    for sizes in (
        (0, 5, 1, 1, 2, 3),
        (2, 5, 1, 1, 2, 0),
        (2, 5, 1, 0, 2, 3),
        (2, 5, 1, 1, 0, 3),
    ):
        scan = diagonals(*sizes)
        weights = [
            np.ones(sizes[:2] + (sizes[3], sizes[5])),
            *(np.zeros((sizes[0], *sizes[4:])),) * 2,
        ]
        results, gradients = core_results(scan, "float32", weights)
        assert not results[0].any()
        assert not any(slopes.any() for slopes in gradients)
    for sizes in ((0, 5, 2, 1, 3), (2, 5, 0, 1, 3), (2, 5, 2, 0, 3)):
        scan = structured(*sizes)
        weights = [np.zeros(sizes[:4]), 0 * scan.arguments[-1]]
        _, gradients = core_results(scan, "float32", weights)
        assert not any(slopes.any() for slopes in gradients)
    for scan in (oscillators(0, 4, 3), oscillators(2, 4, 0)):
        weights = [np.ones(scan.arguments[0].shape)] * 4
        results, gradients = core_results(scan, "float32", weights)
        assert not any(part.size for part in (*results, *gradients))


def test_sizes_that_do_not_fit_are_named():
    for sizes in (
        # No time, parts, or steps in a block.
        (1, 2, 0, 1, 1, 3, 4, 8),
        (1, 2, 5, 0, 1, 3, 4, 8),
        (1, 2, 5, 3, 1, 3, 4, 8),
        (1, 2, 5, 1, 1, 3, 4, 0),
    ):
        require_refused("diagonal_scan_irregular", COMPLEX, sizes)
    require_refused("oscillator_scan_irregular", COMPLEX, (1, 2, 0, 3))
    for sizes in (
        (1, 2, 0, 2, 1, 3, 8, bits_of(0.5)),
        (1, 2, 5, 2, 1, 0, 8, bits_of(0.5)),
        # Blocks without steps.
        (1, 2, 7, 3, 2, 5, 0, bits_of(0.5)),
    ):
        require_refused("structured_scan_irregular", 0, sizes)


def test_real_numbers_are_refused():
    require_refused("diagonal_scan_irregular", 0, (1, 2, 5, 1, 1, 3, 4, 8))
    require_refused("oscillator_scan_irregular", 0, (1, 2, 5, 3))


def require_refused(name, flags, sizes):
    with pytest.raises(ValueError, match="sizes that fit together"):
        core.call(f"keras_linrec_{name}", flags, sizes, [], [])


def test_large_angles_keep_their_digits():
    """Where quarters of a turn are too many to be counted exactly."""
    angles = np.array([1e3, 1e5, 1048575.5, 2e6, 1e9, -3e12])[None]
    scan = diagonals(1, 1, 1, 1, 1, 6)
    arguments = scan.arguments
    arguments[0], arguments[1] = 0.0 * angles, 2.0 * angles
    arguments[2:4] = np.ones((2, 1, 1, 6))
    arguments[4][:] = 1.0
    arguments[5][:] = arguments[6][:] = 0.0
    arguments[7][:], arguments[8][:] = 1.0, 0.0
    results, _ = core_results(
        scan, "float64", [np.ones((1, 1, 1, 6))] + [0 * angles[None]] * 2
    )
    expected = np.exp(2j * angles)
    assert np.abs(results[1][0] - expected.real).max() < 4e-16
    assert np.abs(results[2][0] - expected.imag).max() < 4e-16


def test_growth_beyond_numbers_is_infinite_in_float32():
    scan = diagonals(1, 2, 1, 1, 1, 1)
    scan.arguments[0][:] = 1e6
    with np.errstate(over="ignore"):
        results = results_of(
            scan.call, quantities(scan, scan.arguments), "float32"
        )
    assert not np.isfinite(results[0]).any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: diagonals(1, 5000, 1, 1, 7, 9, block=64),
        lambda: structured(1, 5000, 3, 1, 64, block=35),
    ],
)
def test_long_sequences_are_as_accurate(make):
    scan = make()
    inputs, *states = scan.arguments[scan.entering :]
    outputs = inputs if is_diagonal(scan) else inputs[..., None]
    weights = weights_of([outputs, *states])
    results, gradients = core_results(scan, "float32", weights)
    # Without checkpoints but the first.
    attributes = 5000, *scan.call.attributes[1:]
    whole = scan._replace(call=scan.call._replace(attributes=attributes))
    expected = core_results(whole, "float64", weights)
    for one, other in zip((*results, *gradients), (*expected[0], *expected[1])):
        assert relative_error(one, other) < 1e-6


THREADS = """
from operations import test_native_irregular_scans as tests
results = []
for scan in (
    tests.diagonals(5, 70, 1, 2, 30, 20),
    tests.oscillators(5, 90, 150),
    tests.structured(5, 30, 20, 2, 40),
):
    weights = tests.weights_of(scan.define(*scan.arguments))
    for part in tests.core_results(scan, "float32", weights):
        results += part
"""


@pytest.mark.skipif(
    not TORCH, reason="the core is the same under every backend"
)
@pytest.mark.rest
def test_any_number_of_threads_gives_the_same_bits():
    require_same_bits(THREADS)


# Through the backend.


BACKEND_SCANS = pytest.mark.parametrize(
    "name", ["nine features", "bilinear", "oscillators", "structured"]
)


def of_differentiated(function, scan):
    (resets,) = tensors([scan.arguments[scan.resets]])
    return lambda given: function(given, resets)


def assert_equals_the_definition(function, scan, tolerance, slopes):
    run, given = of_differentiated(function, scan), without_resets(scan)
    expected = scan.define(*scan.arguments)
    for one, other in zip(to_numpy(compiled(run)(tensors(given))), expected):
        assert relative_error(one, other) < tolerance
    weights = weights_of(expected)
    gradients = backend_gradients(run, given, weights)
    assert_slopes_of(scan, gradients, weights, slopes)


@BACKEND_SCANS
def test_the_kernel_equals_the_definition(name):
    scan = SCANS[name]()
    slopes = scan.slopes["float32"]
    assert_equals_the_definition(scan.kernel, scan, 1e-6, slopes)


@BACKEND_SCANS
def test_the_plain_form_equals_the_definition(name):
    scan = SCANS[name]()
    # Angles are rounded to float32 there.
    assert_equals_the_definition(scan.plain, scan, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: diagonals(2, 4, 2, 1, 2, 3),
        lambda: oscillators(2, 4, 3),
        lambda: structured(2, 5, 2, 1, 3),
    ],
)
def test_the_second_derivative_is_that_of_the_plain_form(make):
    scan = make()
    if is_diagonal(scan):
        # In float32, second derivatives of fast turns have few digits.
        for part in range(2):
            scan.arguments[part] = 0.5 * np.tanh(scan.arguments[part])
    given = without_resets(scan)
    got, expected = (
        second_derivatives(of_differentiated(function, scan), given)
        for function in (scan.kernel, scan.plain)
    )
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4


@pytest.mark.parametrize(
    "make",
    [
        lambda: diagonals(2, 12, 1, 1, 3, 4),
        lambda: oscillators(2, 12, 3),
        lambda: structured(2, 12, 3, 1, 4),
    ],
)
def test_what_is_not_a_number_ends_at_a_reset(make):
    scan = make()
    resets = scan.arguments[scan.resets]
    resets[:] = 0.0
    resets[0, 5] = 1.0
    expected = scan.define(*scan.arguments)
    scan.arguments[scan.entering][0, 3] = np.nan
    run = of_differentiated(scan.kernel, scan)
    found = to_numpy(run(tensors(without_resets(scan))))
    assert np.isnan(found[0][0, 3:5]).all()
    assert relative_error(found[0][0, 5:], expected[0][0, 5:]) < 1e-6
    for one, other in zip(found[1:], expected[1:]):
        if one.shape == found[0].shape:
            # Of all steps too, with NaN before the reset.
            one, other = one[1], other[1]
        assert relative_error(one, other) < 1e-6


@pytest.mark.parametrize("with_resets", [False, True])
def test_a_reversed_scan_is_that_of_reversed_steps(with_resets):
    scan = diagonals(2, 9, 1, 1, 3, 4)
    given = tensors(without_resets(scan))
    *system, lengths, inputs, real, imag = given
    reset_mask = None
    if with_resets:
        # The step before which the forward recurrence drops its state.
        reset_mask = keras.ops.convert_to_tensor(
            np.arange(9)[None] == [[4], [0]]
        )
    outputs, final_state = ops.continuous_diagonal.diagonal_scan_irregular(
        tuple(system[:2]),
        tuple(system[2:]),
        lengths,
        inputs,
        (real, imag),
        reverse=True,
        reset_mask=reset_mask,
    )
    resets = np.zeros((2, 9))
    if with_resets:
        # Read backwards, the steps before it belong to another sequence.
        resets[0, 5] = 1.0
    turned = list(scan.arguments)
    turned[4], turned[6] = turned[4][:, ::-1], turned[6][:, ::-1]
    turned[5] = resets
    expected = scan.define(*turned)
    outputs = to_numpy([outputs])[0][:, ::-1]
    assert relative_error(outputs, expected[0]) < 1e-6
    for one, other in zip(to_numpy(list(final_state)), expected[1:]):
        assert relative_error(one, other) < 1e-6
