"""The C++ core against float64 loops, called with plain NumPy arrays.

The core is independent of frameworks, so these tests run under PyTorch only.
"""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from definitions import convolution
from definitions import moves_of_steps
from definitions import scan as definition
from support import TESTS
from support.autodiff import relative_error
from support.core_calls import results_of
from support.core_calls import write
from support.needs_native import require_native

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import PER_STEP
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import flatten

require_native()

FIELDS = {"real": 1, "complex": 2}
DTYPES = ["float32", "float64"]
# Eight times the rounding error of one number; more for the gradients' sums.
TOLERANCE = {"float32": 2e-6, "float64": 2e-14}

# groups, batch, time, channels
SCANS = [
    (1, 1, 1, 1),
    (2, 3, 50, 7),
    (1, 1, 9001, 19),
    (1, 1, 20000, 3),
    (1, 3, 200, 130),
    # Two threads take a row each, and share the third.
    (1, 3, 400, 70),
]
# groups, batch, time, features, channels, units
PROJECTED_SCANS = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 100, 5, 7, 6),
    (1, 1, 1500, 33, 40, 37),
    (1, 5, 97, 64, 64, 32),
    (1, 2, 300, 3, 9, 600),
    (1, 2, 100, 600, 300, 3),
]
# groups, batch, time, features, channels, taps
CONVOLUTIONS = [
    ((1, 1, 1, 1, 1, 1), "linear"),
    ((2, 3, 50, 7, 2, 20), "linear"),
    ((1, 40, 63, 1, 1, 63), "linear"),
    ((1, 5, 785, 20, 3, 785), "gelu"),
    ((1, 2, 3000, 33, 1, 3000), "linear"),
    ((2, 3, 50, 7, 2, 20), "gelu"),
    ((1, 40, 63, 1, 1, 63), "gelu"),
    ((1, 3, 50, 20, 1, 50), "relu"),
    ((1, 3, 50, 20, 1, 50), "leaky_relu"),
    ((1, 3, 50, 3, 2, 50), "tanh"),
    ((1, 3, 50, 3, 2, 50), "sigmoid"),
]
# groups, batch, time, features
MOVES = [(1, 1, 1, 1), (2, 3, 50, 7), (1, 1, 3000, 40), (1, 5, 700, 64)]


# Of the resets the core reads nothing without the flag.
NONE = np.empty((0, 0))


def flags_of(field, per_step, reverse, resets=NONE):
    return (
        COMPLEX * (field == "complex")
        + PER_STEP * per_step
        + REVERSE * reverse
        + RESETS * (resets.size > 0)
    )


class Numbers:
    """Random real or complex quantities: lists of one or two arrays."""

    def __init__(self, field, dtype, seed=0):
        self.parts, self.dtype = FIELDS[field], dtype
        self.generator = np.random.default_rng(seed)

    def make(self, *shape, parts=None):
        return [
            self.generator.uniform(-0.7, 0.7, shape).astype(self.dtype)
            for _ in range(parts or self.parts)
        ]

    def resets(self, groups, batch, time):
        """None; then at first, last, all or some steps, by row."""
        marks = self.generator.random((groups * batch, time)) < 0.3
        if time > 1000:
            # All in one part, so that some parts have none.
            marks[:, time // 3 :] = False
        marks[1:2] = True
        marks[2:3] = np.arange(time) % max(time - 1, 1) == 0
        marks = marks.reshape(groups, batch, time).astype(self.dtype)
        return np.empty((groups, 0, 0)), marks


def number(quantity):
    """A quantity as one float64 or complex128 array."""
    parts = [part.astype("float64") for part in flatten([quantity])]
    return parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]


def groups_of(quantities, group):
    return [number(quantity)[group] for quantity in quantities]


def drops_of(resets, group):
    return resets[group] != 0 if resets.size else None


def decay_shape(groups, batch, time, channels, per_step):
    rows = (batch, time) if per_step else ()
    return groups, *rows, channels


def silence(d_outputs, d_final, reverse):
    """Leave no cotangent of a row's last third, as behind a padded row.

    But in the first row, whose final state still has one. In the last row no
    step has any.
    """
    batch, time = d_outputs[0].shape[1:3]
    last = slice(time // 3) if reverse else slice(time - time // 3, time)
    d_outputs[0][:, :, last] = 0
    if batch > 1:
        d_outputs[0][:, -1] = 0
        for part in d_final:
            part[:, 1:] = 0


def assert_close(got, expected, dtype, factor=1.0):
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < factor * TOLERANCE[dtype]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SCANS)
def test_scan_equals_its_definition(sizes, dtype, field, per_step, reverse):
    groups, batch, time, channels = sizes
    random = Numbers(field, dtype)
    decay = random.make(*decay_shape(*sizes, per_step))
    inputs, d_outputs = random.make(*sizes), random.make(*sizes)
    states = groups, batch, channels
    initial, d_final = random.make(*states), random.make(*states)
    for resets in random.resets(groups, batch, time):
        call = Call("scan", flags_of(field, per_step, reverse, resets))
        operands = decay, inputs, resets, initial
        outputs, final = results = results_of(call, operands, dtype)
        given = decay, outputs, resets, initial, d_outputs, d_final
        gradients = results_of(call.backward, given, dtype)
        for group in range(groups):
            drops = drops_of(resets, group)
            expected = definition.linear_scan(
                *groups_of((decay, inputs, initial), group), reverse, drops
            )
            assert_close(groups_of(results, group), expected, dtype)
            rate, start, *cotangents = groups_of(
                (decay, initial, d_outputs, d_final), group
            )
            expected = definition.linear_scan_gradients(
                rate, expected[0], start, *cotangents, reverse, drops
            )
            assert_close(groups_of(gradients, group), expected, dtype)

    # Results may overwrite the arrays from which they are computed.
    write(call, operands, (inputs, final))
    assert all(np.array_equal(*pair) for pair in zip(inputs, outputs))
    d_decay, d_inputs, d_initial = gradients
    write(call.backward, given, (d_decay, d_outputs, d_initial))
    assert all(np.array_equal(*pair) for pair in zip(d_outputs, d_inputs))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", PROJECTED_SCANS)
def test_projected_scan_equals_its_definition(
    sizes, dtype, field, per_step, reverse
):
    groups, batch, time, features, channels, units = sizes
    random = Numbers(field, dtype)
    decay = random.make(*decay_shape(groups, batch, time, channels, per_step))
    inputs = random.make(groups, batch, time, features, parts=1)
    into = random.make(groups, features, channels)
    out = random.make(groups, channels, units)
    states = groups, batch, channels
    initial, d_final = random.make(*states), random.make(*states)
    d_outputs = random.make(groups, batch, time, units, parts=1)
    none, marks = random.resets(groups, batch, time)
    block = block_length(FIELDS[field] * channels)
    for resets, padded in ((none, False), (marks, False), (none, True)):
        if padded:
            silence(d_outputs, d_final, reverse)
        flags = flags_of(field, per_step, reverse, resets)
        call = Call("projected_scan", flags, (block,))
        operands = decay, inputs, into, out
        *results, kept = results_of(call, (*operands, resets, initial), dtype)
        given = *operands, resets, kept, d_outputs, d_final, initial
        gradients = results_of(call.backward, given, dtype)
        for group in range(groups):
            drops = drops_of(resets, group)
            rate, rows, kernel, read_out, start = groups_of(
                (*operands, initial), group
            )
            states, last = definition.linear_scan(
                rate, rows @ kernel, start, reverse, drops
            )
            expected = (states @ read_out).real, last
            assert_close(groups_of(results, group), expected, dtype)

            slopes, d_last = groups_of((d_outputs, d_final), group)
            d_rate, d_projected, d_start = definition.linear_scan_gradients(
                rate,
                states,
                start,
                slopes @ read_out.conj().T,
                d_last,
                reverse,
                drops,
            )
            expected = (
                d_rate,
                (d_projected @ kernel.conj().T).real,
                np.einsum("btf,btc->fc", rows, d_projected),
                np.einsum("btc,btu->cu", states.conj(), slopes),
                d_start,
            )
            # Sums over steps, to which resets leave fewer large terms.
            assert_close(groups_of(gradients, group), expected, dtype, 1.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "activation"), CONVOLUTIONS)
def test_causal_convolution_equals_its_definition(sizes, activation, dtype):
    groups, batch, time, features, channels, taps = sizes
    random = Numbers("real", dtype)
    inputs = random.make(groups, batch, time, features)
    response = random.make(groups, features, channels, taps)
    d_outputs = random.make(groups, batch, time, features, channels)
    call, given = convolution_with(activation), (inputs, response, d_outputs)

    (outputs,) = results_of(call, given[:-1], dtype)
    gradients = results_of(call.backward, given, dtype)
    for group in range(groups):
        rows, taps_of, slopes = groups_of(given, group)
        expected = convolution.causal_convolution(rows, taps_of, activation)
        assert_close(groups_of((outputs,), group), [expected], dtype)
        expected = convolution.gradients(rows, taps_of, slopes, activation)
        assert_close(groups_of(gradients, group), expected, dtype)

    # One gradient alone is the same as both.
    for wanted in range(2):
        alone = [np.full_like(part, np.nan) for part in gradients]
        into = [None, None]
        into[wanted] = alone[wanted]
        write(call.backward, given, into)
        assert np.array_equal(alone[wanted], gradients[wanted])
        assert np.isnan(alone[1 - wanted]).all()


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in_place"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", MOVES)
def test_moves_of_steps_equal_their_definition(sizes, dtype, in_place):
    (sequences,) = Numbers("real", dtype).make(*sizes)
    batch, time = sizes[0] * sizes[1], sizes[2]
    mask = np.random.default_rng(1).random((batch, time)) < 0.6
    mask[0, time // 2 :] = False
    mask[-1] = batch == 1
    for flags in (0, 16, 32, 48):
        moves = moves_of_steps.matrices(mask, flags & 16, flags & 32)
        expected = moves @ sequences.reshape(batch, time, -1)
        given = sequences.copy()
        moved = given if in_place else np.full_like(given, np.nan)
        operands = given, mask.reshape(sizes[:3])
        write(Call("move_steps", flags), operands, (moved,))
        assert relative_error(moved, expected.reshape(sizes)) < TOLERANCE[dtype]


def convolution_with(activation):
    flags, leak = activation_flags(keras.activations.get(activation))
    return Call("causal_convolution", flags, (leak,))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 4e-7), ("float64", 2e-14)]
)
def test_gelu_keeps_its_digits_where_it_is_small(dtype, tolerance):
    # Single steps, and a response of one.
    numbers = np.linspace(-8, 8, 4001).astype(dtype)
    inputs = numbers.reshape(1, -1, 1, 1)
    response = np.ones((1, 1, 1, 1), dtype)
    call = convolution_with("gelu")
    (outputs,) = results_of(call, (inputs, response), dtype)
    value, slope = convolution.ACTIVATIONS["gelu"]
    exact = value(numbers.astype("float64"))
    error = np.abs(outputs.ravel() - exact)
    assert (error <= tolerance * np.abs(exact)).all()

    given = inputs, response, np.ones_like(outputs)
    d_inputs, _ = results_of(call.backward, given, dtype)
    exact = slope(numbers.astype("float64"))
    assert np.abs(d_inputs.ravel() - exact).max() < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_of_large_numbers_is_zero_or_the_number(dtype):
    sizes = np.array([40, 1e3, 1e6, 1e19, 1e30, 3e38], dtype)
    for numbers, exact in ((sizes, sizes), (-sizes, 0 * sizes)):
        inputs = numbers.reshape(-1, 1, 1, 1)
        response = np.ones_like(inputs)
        call = convolution_with("gelu")
        (outputs,) = results_of(call, (inputs, response), dtype)
        error = np.abs(outputs.ravel() - exact)
        assert (error <= 1e-6 * exact).all()


def test_no_rows_give_no_outputs_and_no_gradient():
    zeros = np.zeros
    decay, state, sequence = zeros(3), zeros((0, 3)), zeros((0, 5, 3))
    scan = Call("scan_backward", 0)
    given = decay, sequence, NONE, state, sequence, state
    ((d_decay,), _, _) = results_of(scan, given, "float32")
    assert not d_decay.any()
    block = 48
    call = Call("projected_scan_backward", 0, (block,))
    kept = zeros((0, checkpoint_count(5, block), 1, 3))
    operands = decay, zeros((0, 5, 2)), zeros((2, 3)), zeros((3, 4))
    given = *operands, NONE, kept, zeros((0, 5, 4)), state, state
    gradients = results_of(call, given, "float32")
    assert not any(part.any() for part in flatten(gradients))


def test_a_decay_close_to_one_does_not_stall():
    # A float32 sum would stop growing 3% short of its limit.
    decay = np.array([1 - 1e-6], "float32")
    inputs = np.full((1, 1_000_000, 1), 1e-6, "float32")
    given = decay, inputs, NONE, np.zeros((1, 1))
    (outputs,), _ = results_of(Call("scan", 0), given, "float32")
    rate = float(decay[0])
    expected = float(inputs[0, 0, 0]) * (1 - rate**1_000_000) / (1 - rate)
    assert abs(outputs[0, -1, 0] / expected - 1) < 1e-7


def test_gradients_of_kernels_keep_their_digits_over_many_steps():
    # Of numbers of one sign, a float32 sum would be 7e-4 off.
    time, block = 2**18, 384
    call = Call("projected_scan_backward", 0, (block,))
    kernel, sequence, state = (2, 2), (1, time, 2), (1, 2)
    kept = 1, checkpoint_count(time, block), 1, 2
    operands = (2,), sequence, kernel, kernel
    shapes = *operands, (0, 0), kept, sequence, state, state
    given = [np.full(shape, 0.3) for shape in shapes]
    gradients = {dtype: results_of(call, given, dtype) for dtype in DTYPES}
    single, double = (map(number, gradients[dtype]) for dtype in DTYPES)
    for one, other in zip(single, double):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_zeros_stay_zero_under_a_growing_decay(per_step):
    # Threads share a long row, and 1.2^32768 overflows.
    zeros = np.zeros((1, 65536, 1))
    decay = np.full(zeros.shape if per_step else 1, 1.2)
    call = Call("scan", flags_of("real", per_step, False))
    given = decay, zeros, NONE, np.zeros((1, 1))
    (outputs,), _ = results_of(call, given, "float32")
    assert not outputs.any()


def test_two_runs_give_the_same_bits():
    random = Numbers("complex", "float32")
    decay, initial = random.make(32), random.make(3, 32)
    inputs = random.make(3, 2000, 16, parts=1)
    into, out = random.make(16, 32), random.make(32, 16)
    d_outputs, d_final = random.make(3, 2000, 16, parts=1), random.make(3, 32)
    call = Call("projected_scan", COMPLEX, (block_length(64),))
    operands = decay, inputs, into, out, NONE
    runs = []
    for _ in range(2):
        outputs, _, kept = results_of(call, (*operands, initial), "float32")
        given = *operands, kept, d_outputs, d_final, initial
        gradients = results_of(call.backward, given, "float32")
        runs.append(flatten([outputs, *gradients]))
    assert all(np.array_equal(*pair) for pair in zip(*runs))


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"Received: sizes=\(1, 2, 0, 3\)"):
        core.call("keras_linrec_scan", 0, (1, 2, 0, 3), [], [])


def run_anew(code, **environment):
    return subprocess.run(
        [sys.executable, *code],
        env={**os.environ, **environment},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.rest
@pytest.mark.parametrize(
    ("instructions", "threads"),
    [
        # The sanitizers' run covers all instruction sets.
        pytest.param("avx2", "3", marks=pytest.mark.slow),
        ("baseline", "5"),
    ],
)
def test_fewer_instructions_and_more_threads_give_the_same(
    instructions, threads
):
    answer = run_anew(
        ["-m", "pytest", "-q", "-x", "-k", "definition and float32", __file__],
        KERAS_LINREC_INSTRUCTION_SET=instructions,
        KERAS_LINREC_NUM_THREADS=threads,
    )
    assert answer.returncode == 0, answer.stdout[-2000:]
    answer = run_anew(
        [
            "-c",
            "from keras_linrec.kernels.native import core\n"
            "print(core.description())",
        ],
        KERAS_LINREC_INSTRUCTION_SET=instructions,
        KERAS_LINREC_NUM_THREADS=threads,
    )
    assert f"{threads} threads" in answer.stdout, answer.stderr


@pytest.mark.rest
def test_a_forked_process_has_its_own_threads():
    answer = run_anew(["-m", "support.fork_worker"])
    assert answer.stdout.split() == ["child", "same", "parent", "same"], (
        answer.stderr
    )
