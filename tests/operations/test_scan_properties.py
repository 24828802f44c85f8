"""The linear scans equal their definition on cases that Hypothesis draws.

`drawn_cases.py` explains how many cases there are.
"""

from functools import cache
from typing import NamedTuple

import keras
import numpy as np
import pytest
import scipy.signal
from definitions import scan as definition
from hypothesis import given
from hypothesis import strategies as st
from support.autodiff import BACKEND
from support.drawn_cases import CASES
from support.drawn_cases import FEW_SHAPES
from support.drawn_cases import NOT_FINITE
from support.drawn_cases import SEEDS
from support.drawn_cases import cases
from support.drawn_cases import kernel
from support.drawn_cases import rounded
from support.drawn_cases import run_as_chosen
from support.drawn_cases import tensors
from support.units import array

from keras_linrec import ops

KERNELS = ["native", "associative", "sequential", "reference"]
SCANS = ["real", "complex", "projected", "complex_projected", "last"]
# Without a setting of its own JAX has no float64.
DTYPES = ["float16", "bfloat16", "float32", "int32"]
DTYPES += [] if BACKEND == "jax" else ["float64"]
FEATURES = 2
# Decays above 1 multiply a state by at most this much over all steps: a
# product of decays, which blocks of steps need, has to be finite.
GROWTH = 1e15


class Form(NamedTuple):
    """The options and sizes for which a program is compiled."""

    kernel: str
    scan: str
    batch: int
    time: int
    channels: int
    dtype: str
    varying: bool
    reverse: bool
    with_state: bool
    with_resets: bool

    @property
    def is_complex(self):
        return self.scan not in ("real", "projected")

    @property
    def is_projected(self):
        return self.scan in ("projected", "complex_projected", "last")


PLAIN_FORM = Form(
    kernel="native",
    scan="real",
    batch=2,
    time=5,
    channels=3,
    dtype="float32",
    varying=False,
    reverse=False,
    with_state=False,
    with_resets=False,
)
FREE_FORMS = st.builds(
    Form,
    kernel=st.sampled_from(KERNELS),
    scan=st.sampled_from(SCANS),
    batch=st.integers(1, 4),
    time=st.one_of(
        st.integers(1, 9), st.sampled_from([31, 32, 33, 63, 64, 65])
    ),
    channels=st.integers(1, 19),
    dtype=st.sampled_from(DTYPES),
    varying=st.booleans(),
    reverse=st.booleans(),
    with_state=st.booleans(),
    with_resets=st.booleans(),
)


def some_forms(count):
    """Forms for every scan on every kernel; the rest is random."""
    generator = np.random.default_rng(0)
    sizes = [(2, 1, 3), (3, 7, 17), (2, 65, 4)]
    return [
        Form(
            KERNELS[index % len(KERNELS)],
            SCANS[index % len(SCANS)],
            *sizes[generator.integers(len(sizes))],
            DTYPES[generator.integers(len(DTYPES))],
            *(bool(choice) for choice in generator.integers(2, size=4)),
        )
        for index in range(count)
    ]


# A program for each form is compiled, so that there are few.
FORMS = (
    st.sampled_from(some_forms(200 if CASES else 20))
    if FEW_SHAPES
    else FREE_FORMS
)


# Kernels that are fast enough for 100,000 steps.
LONG = ["native", "sequential" if BACKEND == "jax" else "associative"]


class Case(NamedTuple):
    """The arguments of a scan, real or complex arrays."""

    decay: np.ndarray
    inputs: np.ndarray
    state: np.ndarray
    resets: np.ndarray
    input_kernel: np.ndarray
    output_kernel: np.ndarray


MAGNITUDES = st.one_of(
    st.floats(0, 1, width=32, allow_subnormal=False),
    st.sampled_from([0.0, 1e-40, 1 - 2**-24, 1.0, GROWTH]),
)
ANGLES = st.one_of(
    st.sampled_from([0.0, np.pi / 2, np.pi]), st.floats(0, 2 * np.pi)
)
DECAYS = st.lists(st.tuples(MAGNITUDES, ANGLES), min_size=1, max_size=5)


def case_of(form, decays, scale, resets, seed):
    """The arguments, rounded to the dtypes in which the scan gets them."""
    generator = np.random.default_rng(seed)
    magnitude, angle = np.transpose(decays)
    magnitude = np.where(
        magnitude > 1, GROWTH ** (1 / form.time), magnitude
    ).astype("float32")
    if form.is_complex:
        choices = magnitude * np.exp(1j * angle)
    else:
        choices = magnitude * np.where(np.cos(angle) < 0, -1.0, 1.0)
    steps = (form.batch, form.time)

    def numbers(*shape, complex=form.is_complex):
        result = generator.standard_normal(shape)
        if complex:
            result = result + 1j * generator.standard_normal(shape)
        return result

    features = FEATURES if form.is_projected else form.channels
    inputs = numbers(
        *steps, features, complex=form.is_complex and not form.is_projected
    )
    return Case(
        rounded(
            generator.choice(
                choices,
                (*steps, form.channels) if form.varying else form.channels,
            )
        ),
        rounded(scale * inputs, form.dtype),
        rounded(numbers(form.batch, form.channels) * form.with_state),
        (generator.random(steps) < resets) & form.with_resets,
        rounded(numbers(FEATURES, form.channels)),
        rounded(numbers(form.channels, 3)),
    )


def arguments_of(form, case):
    """The arguments of a form's program, as tensors."""
    given = {"decay": tensors(case.decay, form.is_complex)}
    pairs = form.is_complex and not form.is_projected
    given["inputs"] = tensors(case.inputs, pairs, form.dtype)
    if form.with_state:
        given["initial_state"] = tensors(case.state, form.is_complex)
    if form.with_resets:
        given["reset_mask"] = keras.ops.convert_to_tensor(case.resets)
    if form.is_projected:
        for name in ("input_kernel", "output_kernel"):
            given[name] = tensors(getattr(case, name), form.is_complex)
    return given


@cache
def program(form):
    scan = {
        "real": ops.linear_scan,
        "complex": ops.complex_linear_scan,
    }.get(form.scan, ops.projected_scan)
    options = {"reverse": form.reverse}
    if form.scan == "last":
        options["keep_all"] = False
    return run_as_chosen(lambda given: scan(**given, **options))


def run(form, case):
    """The outputs, or `None` if the form keeps none, and the final state."""
    with kernel(form.kernel):
        outputs, state = program(form)(arguments_of(form, case))
    return number(outputs), number(state)


def number(parts):
    if parts is None:
        return None
    if isinstance(parts, (tuple, list)):
        real, imag = (array(part) for part in parts)
        # real + 1j * imag would be NaN for infinite parts.
        result = np.empty(real.shape, np.result_type(real, "complex64"))
        result.real, result.imag = real, imag
        return result
    return array(parts)


def starts(form, case):
    """The steps before which the state is zero."""
    if not form.reverse:
        return case.resets
    # In reverse, the first step that is read of a sequence is its last.
    begins = np.roll(case.resets, -1, axis=1)
    begins[:, -1:] = False
    return begins


def define(form, case):
    """The expected result in float64, from the definition."""
    shape = (form.batch, form.time, form.channels)
    decay = np.broadcast_to(case.decay, shape)
    decay = np.where(starts(form, case)[..., None], 0.0, decay)
    if not form.is_projected:
        return definition.linear_scan(
            decay, case.inputs, case.state, form.reverse
        )
    outputs, state = definition.projected_scan(
        decay,
        case.inputs,
        case.input_kernel,
        case.output_kernel,
        case.state,
        form.reverse,
    )
    return None if form.scan == "last" else outputs, state


def bounds_of(form, case, dtype):
    """Bounds on the rounding errors of outputs and state, entry by entry.

    The scan of all magnitudes bounds every intermediate sum; each step may
    lose a few units in the last place of it. In addition, subnormal numbers
    may become zero at any step.
    """
    limits = np.finfo(dtype)
    share = limits.eps * (8 * form.time + 8 * form.channels + 32)
    sizes = Case(*(np.abs(part) for part in case))._replace(resets=case.resets)
    outputs, state = define(form, sizes)
    largest = max(state.max(), 1.0 if outputs is None else outputs.max(), 1.0)
    tiny = limits.tiny
    if holds_subnormals(case.decay) or holds_subnormals(case.state):
        # These come as float32; TensorFlow's cast to float64 may lose them.
        tiny = np.finfo("float32").tiny
    lost = tiny * largest * 8
    flushed = sizes._replace(
        inputs=np.full_like(sizes.inputs, lost), state=sizes.state * 0 + lost
    )
    return [
        None if size is None else share * size + more
        for size, more in zip((outputs, state), define(form, flushed))
    ]


def holds_subnormals(numbers):
    """Whether some numbers are subnormal in float32."""
    sizes = np.abs([np.real(numbers), np.imag(numbers)])
    return ((sizes > 0) & (sizes < np.finfo("float32").tiny)).any()


@cases(0.48)
@given(
    form=FORMS,
    decays=DECAYS,
    scale=st.sampled_from([1.0, 0.0, 1e-30, 1e-40, 1e3]),
    resets=st.sampled_from([0.0, 0.1, 1.0]),
    seed=SEEDS,
)
def test_a_scan_equals_its_definition(form, decays, scale, resets, seed):
    case = case_of(form, decays, scale, resets, seed)
    got, expected = run(form, case), define(form, case)
    dtype = "float64" if form.dtype == "float64" else "float32"
    for one, other, bound in zip(got, expected, bounds_of(form, case, dtype)):
        if other is None:
            assert one is None
            continue
        assert one.real.dtype == dtype
        assert one.shape == other.shape
        assert (np.abs(one - other) <= bound).all()


@cases(0.2)
@given(
    form=FORMS,
    decays=DECAYS,
    resets=st.sampled_from([0.0, 0.1]),
    where=st.sampled_from(["inputs", "state", "decay"]),
    value=NOT_FINITE,
    place=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=SEEDS,
)
def test_nan_and_infinity_reach_only_later_steps_of_their_row(
    form, decays, resets, where, value, place, seed
):
    if form.dtype == "int32":
        form = form._replace(dtype="float32")
    if where == "decay" and not form.varying:
        where = "inputs"
    if where == "state" and not form.with_state:
        where = "inputs"
    case = case_of(form, decays, 1.0, resets, seed)
    row = round(place[0] * (form.batch - 1))
    step = round(place[1] * (form.time - 1))
    clean = run(form, case)
    spoiled = case._replace(**{where: getattr(case, where).copy()})
    numbers = getattr(spoiled, where)
    numbers[(row,) if where == "state" else (row, step)] = value
    got = run(form, spoiled)
    others = np.arange(form.batch) != row
    for one, other in zip(got, clean):
        if one is not None:
            np.testing.assert_array_equal(one[others], other[others])
    outputs, state = got
    if outputs is None:
        return
    if where == "state":
        step = form.time - 1 if form.reverse else 0
    earlier = slice(step + 1, None) if form.reverse else slice(step)
    np.testing.assert_array_equal(outputs[row, earlier], clean[0][row, earlier])
    # A decay that multiplies a state of zero may be left out.
    first = step == (form.time - 1 if form.reverse else 0)
    unused = starts(form, case)[row, step] or (first and not form.with_state)
    if where == "inputs" or not unused:
        assert not np.isfinite(outputs[row, step]).any()
    # A reset stops it.
    others = np.flatnonzero(starts(form, case)[row])
    if form.reverse:
        later = slice(others[others < step].max(initial=-1) + 1)
    else:
        later = slice(others[others > step].min(initial=form.time), None)
    np.testing.assert_array_equal(outputs[row, later], clean[0][row, later])


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_scan_takes_a_batch_of_no_rows_and_no_time_is_named(name, scan):
    for varying in (False, True):
        form = PLAIN_FORM._replace(
            kernel=name,
            scan=scan,
            batch=0,
            varying=varying,
            reverse=varying,
            with_state=varying,
        )
        case = case_of(form, [(0.5, 0.0)], 1.0, 0.0, 0)
        outputs, state = run(form, case)
        assert state.shape == (0, 3)
        if outputs is not None:
            assert outputs.shape == (0, 5, 3)
        form = form._replace(batch=2, time=0)
        empty = case._replace(
            decay=np.zeros((2, 0, 3)) if varying else case.decay,
            inputs=np.zeros((2, 0, case.inputs.shape[2])),
            state=np.zeros((2, 3)),
        )
        with pytest.raises(ValueError, match="`inputs` should .* time step"):
            run(form, empty)


@pytest.mark.parametrize("name", LONG)
@cases(0.01)
@given(
    decays=st.lists(st.tuples(MAGNITUDES, ANGLES), min_size=3, max_size=3),
    is_complex=st.booleans(),
    reverse=st.booleans(),
    seed=SEEDS,
)
def test_a_hundred_thousand_steps_equal_the_definition(
    name, decays, is_complex, reverse, seed
):
    form = PLAIN_FORM._replace(
        kernel=name,
        scan="complex" if is_complex else "real",
        batch=1,
        time=100_000,
        reverse=reverse,
    )
    case = case_of(form, decays, 1.0, 0.0, seed)
    backwards = slice(None, None, -1 if reverse else 1)
    outputs, _ = run(form, case)
    for channel, decay in enumerate(case.decay):
        got = outputs[0, backwards, channel]
        inputs = case.inputs[0, backwards, channel]
        expected = scipy.signal.lfilter([1.0], [1.0, -decay], inputs)
        size = scipy.signal.lfilter([1.0], [1.0, -abs(decay)], abs(inputs))
        assert (np.abs(got - expected) <= 2e-3 * size).all()
        assert np.median(np.abs(got - expected) / size) < 1e-4
