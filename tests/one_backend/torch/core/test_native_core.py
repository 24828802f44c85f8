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
from support.needs_native import require_native

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import bits_of

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


def flags_of(field, per_step, reverse, dtype):
    return (
        (field == "complex")
        + 2 * per_step
        + 4 * reverse
        + 8 * (dtype == "float64")
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
        """At first, last, all or some steps, another way in each row."""
        marks = self.generator.random((groups * batch, time)) < 0.3
        if time > 1000:
            # All in one part, so that some parts have none.
            marks[:, time // 3 :] = False
        marks[1:2] = True
        marks[2:3] = np.arange(time) % max(time - 1, 1) == 0
        return [marks.reshape(groups, batch, time).astype(self.dtype)]


# Resets are one array, of which the core reads nothing without the flag.
NONE = [np.empty((0, 0))]


def number(parts):
    """A quantity as one float64 or complex128 array."""
    parts = [part.astype("float64") for part in parts]
    return parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]


def empty_like(*quantities):
    return [[np.full_like(p, np.nan) for p in parts] for parts in quantities]


def call(name, flags, sizes, quantities, results):
    core.call(
        f"keras_linrec_{name}",
        flags,
        sizes,
        [part.ctypes.data for parts in quantities for part in parts],
        [part.ctypes.data for parts in results for part in parts],
    )


def groups_of(quantities, group):
    return [number([part[group] for part in parts]) for parts in quantities]


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
    resets = random.resets(groups, batch, time)
    for marks in ([], resets):
        flags = flags_of(field, per_step, reverse, dtype) + 128 * bool(marks)
        outputs, final = empty_like(inputs, initial)
        operands = decay, inputs, marks or NONE, initial
        call("scan", flags, sizes, operands, (outputs, final))
        given = decay, outputs, marks or NONE, initial, d_outputs, d_final
        gradients = empty_like(decay, inputs, initial)
        call("scan_backward", flags, sizes, given, gradients)
        for group in range(groups):
            drops = marks[0][group] != 0 if marks else None
            expected = definition.linear_scan(
                *groups_of((decay, inputs, initial), group), reverse, drops
            )
            assert_close(groups_of((outputs, final), group), expected, dtype)
            rate, start, *cotangents = groups_of(
                (decay, initial, d_outputs, d_final), group
            )
            expected = definition.linear_scan_gradients(
                rate, expected[0], start, *cotangents, reverse, drops
            )
            assert_close(groups_of(gradients, group), expected, dtype)

    # Results may overwrite the arrays from which they are computed.
    call("scan", flags, sizes, operands, (inputs, final))
    assert all(np.array_equal(*pair) for pair in zip(inputs, outputs))
    wanted = gradients[1]
    gradients[1] = d_outputs
    call("scan_backward", flags, sizes, given, gradients)
    assert all(np.array_equal(*pair) for pair in zip(d_outputs, wanted))


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
    resets = random.resets(groups, batch, time)
    parts = FIELDS[field]
    block = block_length(parts * channels)
    sizes = (*sizes, block)
    kept = [
        np.empty((groups, batch, time // block + 2, parts, channels), dtype)
    ]
    for marks, padded in (([], False), (resets, False), ([], True)):
        if padded:
            silence(d_outputs, d_final, reverse)
        flags = flags_of(field, per_step, reverse, dtype) + 128 * bool(marks)
        operands = decay, inputs, into, out
        outputs, final = empty_like(d_outputs, initial)
        call(
            "projected_scan",
            flags,
            sizes,
            (*operands, marks or NONE, initial),
            (outputs, final, kept),
        )
        gradients = empty_like(*operands, initial)
        call(
            "projected_scan_backward",
            flags,
            sizes,
            (*operands, marks or NONE, kept, d_outputs, d_final),
            gradients,
        )
        for group in range(groups):
            drops = marks[0][group] != 0 if marks else None
            rate, rows, kernel, read_out, start = groups_of(
                (*operands, initial), group
            )
            states, last = definition.linear_scan(
                rate, rows @ kernel, start, reverse, drops
            )
            expected = (states @ read_out).real, last
            assert_close(groups_of((outputs, final), group), expected, dtype)

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
    flags, sizes = encoded(sizes, activation, dtype)

    (outputs,) = empty_like(d_outputs)
    call("causal_convolution", flags, sizes, (inputs, response), (outputs,))
    gradients = empty_like(inputs, response)
    given = inputs, response, d_outputs
    call("causal_convolution_backward", flags, sizes, given, gradients)
    for group in range(groups):
        rows, taps_of, slopes = groups_of(given, group)
        expected = convolution.causal_convolution(rows, taps_of, activation)
        assert_close(groups_of((outputs,), group), [expected], dtype)
        expected = convolution.gradients(rows, taps_of, slopes, activation)
        assert_close(groups_of(gradients, group), expected, dtype)

    # One gradient alone is the same as both.
    for wanted in range(2):
        alone = empty_like(inputs, response)
        core.call(
            "keras_linrec_causal_convolution_backward",
            flags,
            sizes,
            [parts[0].ctypes.data for parts in given],
            [
                parts[0].ctypes.data if index == wanted else None
                for index, parts in enumerate(alone)
            ],
        )
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
        call(
            "move_steps",
            flags + 8 * (dtype == "float64"),
            sizes,
            ([given], [mask.astype(dtype)]),
            ([moved],),
        )
        assert relative_error(moved, expected.reshape(sizes)) < TOLERANCE[dtype]


def encoded(sizes, activation, dtype):
    """The flags and the sizes of a causal convolution."""
    function = keras.activations.get(activation)
    flags, leak = activation_flags(function)
    flags |= flags_of("real", False, False, dtype)
    return flags, (*sizes, bits_of(leak))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 4e-7), ("float64", 2e-14)]
)
def test_gelu_keeps_its_digits_where_it_is_small(dtype, tolerance):
    # Single steps, and a response of one.
    numbers = np.linspace(-8, 8, 4001).astype(dtype)
    inputs = [numbers.reshape(1, -1, 1, 1)]
    response = [np.ones((1, 1, 1, 1), dtype)]
    flags, sizes = encoded((1, numbers.size, 1, 1, 1, 1), "gelu", dtype)
    (outputs,) = empty_like(inputs)
    call("causal_convolution", flags, sizes, (inputs, response), (outputs,))
    value, slope = convolution.ACTIVATIONS["gelu"]
    exact = value(numbers.astype("float64"))
    error = np.abs(outputs[0].ravel() - exact)
    assert (error <= tolerance * np.abs(exact)).all()

    (d_inputs,) = empty_like(inputs)
    given = inputs, response, [np.ones_like(inputs[0])]
    (d_response,) = empty_like(response)
    call(
        "causal_convolution_backward",
        flags,
        sizes,
        given,
        (d_inputs, d_response),
    )
    exact = slope(numbers.astype("float64"))
    assert np.abs(d_inputs[0].ravel() - exact).max() < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_of_large_numbers_is_zero_or_the_number(dtype):
    sizes = np.array([40, 1e3, 1e6, 1e19, 1e30, 3e38], dtype)
    for numbers, exact in ((sizes, sizes), (-sizes, 0 * sizes)):
        inputs = [numbers.reshape(-1, 1, 1, 1)]
        response = [np.ones((numbers.size, 1, 1, 1), dtype)]
        flags, given = encoded((numbers.size, 1, 1, 1, 1, 1), "gelu", dtype)
        (outputs,) = empty_like(inputs)
        call("causal_convolution", flags, given, (inputs, response), (outputs,))
        error = np.abs(outputs[0].ravel() - exact)
        assert (error <= 1e-6 * exact).all()


def test_no_rows_give_no_outputs_and_no_gradient():
    zeros = np.zeros
    decay, into, out = (zeros(s, "float32") for s in ((3,), (2, 3), (3, 4)))
    none = zeros((0,), "float32")
    gradients = [
        [np.ones_like(part)] for part in (decay, none, into, out, none)
    ]
    call(
        "scan_backward",
        0,
        (1, 0, 5, 3),
        [[decay]] + [[none]] * 5,
        [gradients[0], [none], [none]],
    )
    assert not gradients[0][0].any()
    gradients[0] = [np.ones_like(decay)]
    given = [[decay], [none], [into], [out], *[[none]] * 4]
    call("projected_scan_backward", 0, (1, 0, 5, 2, 3, 4, 48), given, gradients)
    assert not any(part.any() for (part,) in gradients)


def test_a_decay_close_to_one_does_not_stall():
    # A float32 sum would stop growing 3% short of its limit.
    decay = np.array([1 - 1e-6], "float32")
    inputs = np.full((1, 1_000_000, 1), 1e-6, "float32")
    start, outputs = np.zeros((1, 1), "float32"), np.empty_like(inputs)
    call(
        "scan",
        0,
        (1, *inputs.shape),
        ([decay], [inputs], NONE, [start]),
        ([outputs], [start.copy()]),
    )
    rate = float(decay[0])
    expected = float(inputs[0, 0, 0]) * (1 - rate**1_000_000) / (1 - rate)
    assert abs(outputs[0, -1, 0] / expected - 1) < 1e-7


def test_gradients_of_kernels_keep_their_digits_over_many_steps():
    # Of numbers of one sign, a float32 sum would be 7e-4 off.
    time, block = 2**18, 384
    shapes = {
        "decay": (2,),
        "inputs": (1, time, 2),
        "input_kernel": (2, 2),
        "output_kernel": (2, 2),
        "resets": (0,),
        "checkpoints": (1, time // block + 2, 1, 2),
        "d_outputs": (1, time, 2),
        "d_final": (1, 2),
    }
    gradients = {}
    for dtype in DTYPES:
        given = [[np.full(s, 0.3, dtype)] for s in shapes.values()]
        gradients[dtype] = empty_like(*given[:4], given[-1])
        call(
            "projected_scan_backward",
            flags_of("real", False, False, dtype),
            (1, 1, time, 2, 2, 2, block),
            given,
            gradients[dtype],
        )
    single, double = (map(number, gradients[dtype]) for dtype in DTYPES)
    for one, other in zip(single, double):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_zeros_stay_zero_under_a_growing_decay(per_step):
    # Threads share a long row, and 1.2^32768 overflows.
    sizes = (1, 1, 65536, 1)
    zeros = np.zeros(sizes[1:], "float32")
    decay = np.full((1,) if not per_step else sizes[1:], 1.2, "float32")
    start, outputs = np.zeros((1, 1), "float32"), np.ones_like(zeros)
    given = [decay], [zeros], NONE, [start]
    call("scan", 2 * per_step, sizes, given, ([outputs], [start.copy()]))
    assert not outputs.any()


def test_two_runs_give_the_same_bits():
    random = Numbers("complex", "float32")
    sizes = (1, 3, 2000, 16, 32, 16)
    decay, initial = random.make(32), random.make(3, 32)
    inputs = random.make(3, 2000, 16, parts=1)
    into, out = random.make(16, 32), random.make(32, 16)
    d_outputs, d_final = random.make(3, 2000, 16, parts=1), random.make(3, 32)
    block = block_length(64)
    kept = [np.empty((3, 2000 // block + 2, 2, 32), "float32")]
    runs = []
    for _ in range(2):
        outputs, final = empty_like(d_outputs, initial)
        gradients = empty_like(decay, inputs, into, out, initial)
        operands = decay, inputs, into, out, NONE
        call(
            "projected_scan",
            1,
            (*sizes, block),
            (*operands, initial),
            (outputs, final, kept),
        )
        call(
            "projected_scan_backward",
            1,
            (*sizes, block),
            (*operands, kept, d_outputs, d_final),
            gradients,
        )
        runs.append([p for parts in (outputs, *gradients) for p in parts])
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
