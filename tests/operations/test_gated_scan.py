"""The gated scan against its float64 definition, with every kernel."""

from functools import partial

import keras
import numpy as np
import pytest
from definitions import gated_scan as definition
from selection import standing_for_all
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import second_derivatives
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.conformance_cases import float64
from support.needs_native import each_kernel
from support.needs_native import require_native
from support.needs_native import require_same_bits

from keras_linrec import config
from keras_linrec.ops.gated_scan import Driven
from keras_linrec.ops.gated_scan import Gates
from keras_linrec.ops.gated_scan import gated_scan

KERNELS = ["native", "associative", "sequential", "reference"]
FORMS = {
    "one": (Gates(), definition.one_gate),
    "one_positive": (
        Gates(positive=True),
        partial(definition.one_gate, candidate="positive"),
    ),
    "two": (Gates(two=True), definition.two_gates),
    "two_positive": (
        Gates(two=True, positive=True),
        partial(definition.two_gates, candidate="positive"),
    ),
    "rates": (Gates(rates=True), definition.rates),
}
EACH_FORM = pytest.mark.parametrize("form", list(FORMS))
# Batch, time and units, by the time. Vectors of numbers are whole or cut, or
# there is none; the blocks of 70 units end in the middle of a row.
SIZES = {
    size[1]: size for size in [(2, 1, 3), (2, 5, 3), (3, 61, 17), (2, 75, 70)]
}
EACH_SIZE = pytest.mark.parametrize(
    "time", standing_for_all(list(SIZES), (5, 61))
)

kernel = each_kernel(*KERNELS)


def case(form, sizes, drive_scale=1.0):
    """The operation and its definition, of a list of arrays, and the list."""
    gates, define_gates = FORMS[form]
    batch, time, units = sizes
    generator = np.random.default_rng(time)
    width = gates.drives * units

    def draw(*shape):
        return generator.standard_normal(shape)

    drive = drive_scale * draw(batch, time, width)
    arrays = [drive, draw(width), draw(batch, units)]
    if gates.positive:
        # At 0, g has a corner, whose slope is no central difference.
        drive[np.abs(drive + arrays[1]) < 1e-3] += 0.01
    if gates.rates:
        arrays += [draw(batch, time, units), -np.exp(draw(units))]
    arrays = [array.astype("float32") for array in arrays]
    define = partial(definition.gated_scan, define_gates)
    return partial(run, gates), define, arrays


def run(gates, given, resets=None):
    drive, bias, state, *others = given
    driven = Driven(drive, bias, *others)
    return gated_scan(gates, driven, state, reset_mask=resets)


def wide(arrays):
    return [array.astype("float64") for array in arrays]


def some_resets(sizes):
    return np.random.default_rng(3).uniform(size=sizes[:2]) < 0.2


def cotangents(sizes):
    """Of the outputs and of the final state."""
    generator = np.random.default_rng(1)
    shapes = sizes, (sizes[0], sizes[2])
    return [generator.standard_normal(shape) for shape in shapes]


def slopes_of(form, arrays, sizes, resets):
    """The gradients of the definition."""
    d_outputs, d_final_state = cotangents(sizes)
    return definition.gated_scan_gradients(
        FORMS[form][1],
        *wide(arrays),
        d_outputs=d_outputs,
        d_final_state=d_final_state,
        resets=resets,
    )


def errors(got, expected):
    return [
        relative_error(*pair)
        for pair in zip(to_numpy(got), expected, strict=True)
    ]


def require_the_definition(form, sizes):
    compute, define, arrays = case(form, sizes)
    for resets in (None, some_resets(sizes)):
        here = partial(compute, resets=resets)
        got = compiled(here)(tensors(arrays))
        assert max(errors(got, define(*wide(arrays), resets=resets))) < 1e-6
        slopes = backend_gradients(here, arrays, cotangents(sizes))
        expected = slopes_of(form, arrays, sizes, resets)
        for one, other in zip(slopes, expected, strict=True):
            assert relative_error(one, other) < 1e-6


@EACH_FORM
@EACH_SIZE
def test_scan_and_gradients_equal_their_definition(kernel, form, time):
    require_the_definition(form, SIZES[time])


@EACH_FORM
def test_threads_may_share_the_steps_of_a_row(form):
    require_native()
    require_the_definition(form, (1, 9000, 8))


@EACH_FORM
def test_float64_keeps_its_digits(form):
    require_native()
    sizes = SIZES[61]
    compute, define, arrays = case(form, sizes)
    resets = some_resets(sizes)
    with float64():
        given = list(map(keras.ops.convert_to_tensor, wide(arrays)))
        weights = list(map(keras.ops.convert_to_tensor, cotangents(sizes)))

        def loss(given):
            results = compute(given, resets)
            pairs = zip(results, weights)
            return sum(keras.ops.sum(one * other) for one, other in pairs)

        expected = define(*wide(arrays), resets=resets)
        assert max(errors(compute(given, resets), expected)) < 1e-12
        # Central differences have fewer digits than the plain form.
        slopes = to_numpy(gradient(loss)(given))
        with config.portable_kernels():
            plain = to_numpy(gradient(loss)(given))
        expected = slopes_of(form, arrays, sizes, resets)
        for one, other, third in zip(slopes, plain, expected, strict=True):
            assert relative_error(one, other) < 1e-12
            assert relative_error(one, third) < 1e-8


@EACH_FORM
def test_second_derivatives_are_those_of_the_plain_form(form):
    require_native()
    compute, _, arrays = case(form, (2, 5, 3))
    got = second_derivatives(compute, arrays)
    with config.portable_kernels():
        expected = second_derivatives(compute, arrays)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@EACH_FORM
def test_drives_of_any_size_give_the_numbers_of_the_definition(kernel, form):
    """Gates that are shut, or open, to the last digit of their logarithm."""
    sizes = (2, 40, 9)
    compute, define, arrays = case(form, sizes, drive_scale=1e4)
    if "one" in form or "two" in form:
        # The candidates have a size of their own.
        arrays[0][..., -9:] /= 1e4
    got = compiled(compute)(tensors(arrays))
    assert max(errors(got, define(*wide(arrays)))) < 1e-6
    got = backend_gradients(compute, arrays, cotangents(sizes))
    assert all(np.isfinite(slope).all() for slope in got)


def test_gates_that_are_both_shut_share_by_their_logarithms(kernel):
    drive = np.float32([[[-1e4, -1e4 + 1.0, 1.0], [-2e4, -1e4, 2.0]]])
    arrays = [drive, np.zeros(3, "float32"), np.zeros((1, 1), "float32")]
    outputs, _ = run(Gates(two=True), tensors(arrays))
    (got,) = to_numpy([outputs])
    assert abs(got[0, 0, 0] - 1 / (1 + np.exp(-1.0))) < 1e-6
    assert got[0, 1, 0] == 2.0


@EACH_FORM
def test_infinite_drives_are_open_and_shut_gates(kernel, form):
    gates, _ = FORMS[form]
    drive = np.zeros((1, 3, gates.drives), "float32")
    drive[0, 0, gates.drives - 2] = np.inf
    drive[0, 1, gates.drives - 2] = -np.inf
    others = [np.ones((1, 3, 1)), -np.ones(1)] if gates.rates else []
    arrays = [drive, np.zeros(gates.drives), np.ones((1, 1)), *others]
    outputs, _ = run(gates, tensors(arrays))
    assert np.isfinite(to_numpy([outputs])[0]).all()


@EACH_FORM
def test_nan_before_a_reset_reaches_nothing_behind_it(kernel, form):
    sizes = (2, 24, 9)
    compute, _, arrays = case(form, sizes)
    resets = np.zeros(sizes[:2], bool)
    resets[:, 15] = True
    spoilt = [array.copy() for array in arrays]
    spoilt[0][:, 7] = spoilt[2][:] = np.nan
    for mask in (resets, some_resets(sizes) | resets):
        compute_here = compiled(partial(compute, resets=mask))
        clean, got = (
            to_numpy(compute_here(tensors(given))) for given in (arrays, spoilt)
        )
        assert np.isnan(got[0][:, 7]).all()
        assert np.array_equal(got[0][:, 15:], clean[0][:, 15:])
        assert np.array_equal(got[1], clean[1])

        def later(given, mask=mask):
            return (compute(given, mask)[0][:, 15:],)

        weights = [cotangents(sizes)[0][:, 15:]]
        clean, got = (
            backend_gradients(later, given, weights)[0]
            for given in (arrays, spoilt)
        )
        assert np.array_equal(got[:, 15:], clean[:, 15:])


@EACH_FORM
def test_nan_reaches_all_steps_behind_it(kernel, form):
    compute, _, arrays = case(form, (1, 20, 3))
    arrays[0][0, 6] = np.nan
    outputs, final_state = to_numpy(compute(tensors(arrays)))
    assert np.isfinite(outputs[:, :6]).all()
    assert np.isnan(outputs[:, 6:]).all() and np.isnan(final_state).all()


def test_decays_near_1_keep_their_digits_over_100000_steps():
    """In float32, a decay of 1 - 1e-5 would be off by a thousandth of that."""
    require_native()
    time = 100_000
    for form in ("one", "two", "rates"):
        compute, define, arrays = case(form, (1, time, 4))
        gates = FORMS[form][0]
        shift = np.zeros((gates.drives, 4), "float32")
        # The gate that keeps the state nearly whole.
        shift[1 if gates.two else 0] = -11.0
        arrays[1] = arrays[1] * 0.1 + shift.reshape(-1)
        outputs, final_state = compiled(compute)(tensors(arrays))
        expected = define(*wide(arrays))
        assert max(errors((outputs, final_state), expected)) < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(kernel, dtype):
    compute, _, arrays = case("one", (2, 9, 5))
    half = [keras.ops.cast(one, dtype) for one in tensors(arrays)]
    exact = [keras.ops.cast(one, "float32") for one in half]
    got, expected = compute(half), compute(exact)
    for one, other in zip(got, expected):
        assert keras.backend.standardize_dtype(one.dtype) == "float32"
        assert np.array_equal(*to_numpy([one, other]))


def test_without_a_bias_or_a_state_both_are_zero(kernel):
    gates = Gates()
    _, define, arrays = case("one", (2, 9, 5))
    for array in arrays[1:]:
        array[:] = 0.0
    got = gated_scan(gates, Driven(*tensors(arrays[:1])))
    assert max(errors(got, define(*wide(arrays)))) < 1e-6


@pytest.mark.rest
def test_threads_do_not_change_the_numbers():
    require_native()
    require_same_bits(
        """
import numpy as np
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import sizes_of

generator = np.random.default_rng(0)
draw = lambda *shape: generator.standard_normal(shape).astype("float32")
batch, time, units = 5, 700, 70
steps, states = (batch, time, units), (batch, units)
given = [draw(batch, time, 2 * units), draw(2 * units), draw(*steps)]
given += [-np.exp(draw(units))]
rest = [draw(0, 0), draw(*states)]
flags = 32
outputs, final = draw(*steps), draw(*states)
addresses = lambda arrays: [array.ctypes.data for array in arrays]
call = Call("gated_scan", flags)
sizes = sizes_of(call, tuple(array.shape for array in given + rest))
core.call(
    "keras_linrec_gated_scan",
    flags,
    sizes,
    addresses(given + rest),
    addresses([outputs, final]),
)
slopes = [np.empty_like(array) for array in (*given, final)]
core.call(
    "keras_linrec_gated_scan_backward",
    flags,
    sizes,
    addresses([*given, outputs, *rest, outputs, final]),
    addresses(slopes),
)
results = [outputs, final, *slopes]
"""
    )
