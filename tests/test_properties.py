r"""The scans and some layers on cases that nobody chose.

Hypothesis draws sizes, dtypes, decays and what goes wrong in a row. Without
more said it draws 200 cases, the same ones as long as the code is the same. As
many others as wanted, new ones each time, come with

    KERAS_BACKEND=torch KERAS_LINREC_CASES=10000 \
        python -m pytest tests/test_properties.py

which takes minutes. JAX, which compiles a program for each combination of
sizes and options, has 20 of these, and 200 where more cases are asked for. A
case that fails is printed in its smallest form.
"""

import os
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import keras
import numpy as np
import pytest
import scipy.signal
from autodiff import BACKEND
from autodiff import compiled
from definitions import scan as definition
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from units import UNITS
from units import array
from units import randomise

import keras_linrec
from keras_linrec import ops

CASES = int(os.environ.get("KERAS_LINREC_CASES", "0"))
KERNELS = ["native", "associative", "sequential", "reference"]
SCANS = ["real", "complex", "projected", "complex_projected", "last"]
# Without a setting of its own JAX has no float64.
DTYPES = ["float16", "bfloat16", "float32", "int32"]
DTYPES += [] if BACKEND == "jax" else ["float64"]
FEATURES = 2
# Decays above 1 multiply a state by at most this much over all steps: a
# product of decays, which blocks of steps need, has to be finite.
GROWTH = 1e15
NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])
SEEDS = st.integers(0, 2**32 - 1)


def cases(share):
    """How many cases a test draws, of 200 or as many as are asked for."""
    return settings(
        max_examples=max(1, round(share * (CASES or 200))),
        derandomize=not CASES,
        database=None,
        deadline=None,
        suppress_health_check=[
            # Seeds are set anew for each test, and no case needs them.
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
        ],
    )


class Form(NamedTuple):
    """What JAX compiles a program for."""

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
    """Forms for every scan on every kernel, and all else by chance."""
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


# JAX compiles each form: there are few of them there.
FORMS = (
    st.sampled_from(some_forms(200 if CASES else 20))
    if BACKEND == "jax"
    else FREE_FORMS
)


# Those that are quick enough for very many steps.
LONG = ["native", "sequential" if BACKEND == "jax" else "associative"]


@contextmanager
def kernel(name):
    keras_linrec.config.set_kernel(name)
    try:
        yield
    finally:
        keras_linrec.config.set_kernel(None)


class Case(NamedTuple):
    """The numbers of a scan; those of a real one are real."""

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
    """The numbers, rounded to what the scan is given."""
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


def rounded(numbers, dtype="float32"):
    """The numbers of a dtype that are next to these, in float64."""
    if np.iscomplexobj(numbers):
        return rounded(numbers.real, dtype) + 1j * rounded(numbers.imag, dtype)
    if dtype == "bfloat16":
        bits = np.asarray(numbers, "float32").view("uint32")
        return (bits & 0xFFFF0000).view("float32").astype("float64")
    return np.asarray(numbers).astype(dtype).astype("float64")


def arguments_of(form, case):
    """The tensors that the program of a form takes."""
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


def tensors(numbers, pair, dtype="float32"):
    if pair:
        return tuple(
            tensors(part, False, dtype)
            for part in (np.real(numbers), np.imag(numbers))
        )
    wide = "float64" if dtype == "float64" else "float32"
    return keras.ops.cast(
        keras.ops.convert_to_tensor(numbers.astype(wide)), dtype
    )


@cache
def program(form):
    scan = {
        "real": ops.linear_scan,
        "complex": ops.complex_linear_scan,
    }.get(form.scan, ops.projected_scan)
    options = {"reverse": form.reverse}
    if form.scan == "last":
        options["keep_all"] = False
    return compiled(lambda given: scan(**given, **options))


def run(form, case):
    """Outputs (`None` where none are wanted) and the final state."""
    with kernel(form.kernel):
        outputs, state = program(form)(arguments_of(form, case))
    return number(outputs), number(state)


def number(parts):
    if parts is None:
        return None
    if isinstance(parts, (tuple, list)):
        real, imag = (array(part) for part in parts)
        # A sum would make NaN of 1j times infinity.
        result = np.empty(real.shape, np.result_type(real, "complex64"))
        result.real, result.imag = real, imag
        return result
    return array(parts)


def starts(form, case):
    """The steps before which the state is zero."""
    if not form.reverse:
        return case.resets
    # What is read first of a sequence is its last step.
    begins = np.roll(case.resets, -1, axis=1)
    begins[:, -1:] = False
    return begins


def define(form, case):
    """The same in float64, from the definition."""
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
    """How far rounding may take each number of the outputs and the state.

    The scan of all magnitudes bounds the size of every sum on the way; of
    it, each step may lose some units in the last place. And numbers below the
    least normal one may become zero at any step.
    """
    limits = np.finfo(dtype)
    share = limits.eps * (8 * form.time + 8 * form.channels + 32)
    sizes = Case(*(np.abs(part) for part in case))._replace(resets=case.resets)
    outputs, state = define(form, sizes)
    largest = max(state.max(), 1.0 if outputs is None else outputs.max(), 1.0)
    lost = limits.tiny * largest * 8
    flushed = sizes._replace(
        inputs=np.full_like(sizes.inputs, lost), state=sizes.state * 0 + lost
    )
    return [
        None if size is None else share * size + more
        for size, more in zip((outputs, state), define(form, flushed))
    ]


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
def test_what_is_not_finite_stays_behind_it_in_its_row(
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
    if where == "inputs" or not starts(form, case)[row, step]:
        assert not np.isfinite(outputs[row, step]).any()


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_scan_takes_a_batch_of_no_rows_and_no_time_is_named(name, scan):
    for varying in (False, True):
        form = Form(
            *(name, scan, 0, 5, 3, "float32", varying, varying),
            with_state=varying,
            with_resets=False,
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
    form = Form(
        *(name, "complex" if is_complex else "real", 1, 100_000, 3),
        *("float32", False, reverse),
        with_state=False,
        with_resets=False,
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


ACTIVATIONS = {
    "linear": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
# Units, time and whether steps are reset.
NONLINEAR_SIZES = (
    st.sampled_from([(3, 6, False), (17, 33, True)])
    if BACKEND == "jax"
    else st.tuples(st.integers(1, 20), st.integers(1, 40), st.booleans())
)


@cache
def nonlinear_program(name, activation, solver, keep_all):
    options = {} if solver is None else {"step_size": 0.1}

    def run(given):
        return ops.nonlinear_scan(
            **given,
            activation=activation,
            solver=solver,
            keep_all=keep_all,
            **options,
        )

    return compiled(run)


def define_nonlinear(given, resets, activation, solver):
    activate = ACTIVATIONS[activation]
    state, weights = given["initial_state"], given["recurrent_kernel"]
    states = []
    for step, inputs in enumerate(given["inputs"].swapaxes(0, 1)):
        drive = inputs @ given["input_kernel"]

        def slope(state, drive=drive):
            return activate(state @ weights + drive)

        state = np.where(resets[:, step, None], 0.0, state)
        if solver is None:
            state = slope(state)
        else:
            state = state + 0.1 * slope(state + 0.05 * slope(state))
        states.append(state)
    return np.stack(states, axis=1), state


@cases(0.17)
@given(
    name=st.sampled_from(["native", "reference"]),
    size=NONLINEAR_SIZES,
    activation=st.sampled_from(
        ["relu", "tanh"] if BACKEND == "jax" else sorted(ACTIVATIONS)
    ),
    solver=st.sampled_from([None, "rk2"]),
    radius=st.sampled_from([0.0, 0.5, 1.0, 1e-40]),
    value=st.one_of(st.none(), NOT_FINITE),
    seed=SEEDS,
)
def test_a_nonlinear_scan_equals_its_definition(
    name, size, activation, solver, radius, value, seed
):
    units, time, with_resets = size
    if BACKEND == "jax":
        solver = None if units == 3 else "rk2"
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.standard_normal((units, units)))
    numbers = {
        "inputs": generator.standard_normal((3, time, FEATURES)),
        "input_kernel": generator.standard_normal((FEATURES, units)),
        "recurrent_kernel": radius * basis,
        "initial_state": generator.standard_normal((3, units)),
    }
    numbers = {name: rounded(part) for name, part in numbers.items()}
    resets = (generator.random((3, time)) < 0.1) & with_resets
    expected = define_nonlinear(numbers, resets, activation, solver)
    step = time // 2
    others = np.arange(3) != 1 if value is not None else slice(None)
    if value is not None:
        numbers["inputs"][1, step] = value
    given = {name: tensors(part, False) for name, part in numbers.items()}
    if with_resets:
        given["reset_mask"] = keras.ops.convert_to_tensor(resets)
    with kernel(name):
        got = nonlinear_program(name, activation, solver, True)(given)
    outputs, state = (array(part) for part in got)
    for one, other in zip((outputs, state), expected):
        one, other = one[others], other[others]
        bound = 1e-6 * (time + 10) * (1 + np.abs(other).max())
        assert (np.abs(one - other) <= bound).all()
    if value is None:
        return
    before = expected[0][1, :step]
    bound = 1e-6 * (time + 10) * (1 + np.abs(before).max(initial=0))
    assert (np.abs(outputs[1, :step] - before) <= bound).all()
    if np.isnan(value):
        assert np.isnan(outputs[1, step]).all()


# JAX compiles each: a convolution and a loop; others are scans.
LAYERS = ["lssl", "orthogonal_rnn"] if BACKEND == "jax" else sorted(UNITS)


@cache
def built(name):
    layer = UNITS[name]()
    layer.build((None, None, 3))
    randomise(layer)
    return compiled(lambda given: layer(given[0], mask=given[1]))


@cases(0.13)
@given(
    name=st.sampled_from(LAYERS),
    scale=st.sampled_from([0.0, 1e-40, 1e-20, 1.0, 1e6]),
    value=NOT_FINITE,
    row=st.integers(0, 2),
    step=st.integers(0, 8),
    seed=SEEDS,
)
def test_one_bad_row_of_a_layer_does_not_reach_the_others(
    name, scale, value, row, step, seed
):
    generator = np.random.default_rng(seed)
    inputs = scale * generator.standard_normal((3, 9, 3)).astype("float32")
    mask = generator.random((3, 9)) < 0.7
    call = built(name)
    clean = array(call([tensors(inputs, False), mask]))
    assert np.isfinite(clean).all()
    inputs[row, step] = value
    got = array(call([tensors(inputs, False), mask]))
    others = np.arange(3) != row
    np.testing.assert_array_equal(got[others], clean[others])
    # And what is masked is not seen.
    assert np.isfinite(got[row]).all() == (not mask[row, step])


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_a_batch_of_no_rows(name):
    layer = UNITS[name](return_state=True)
    layer.build((None, 5, 3))
    marks = np.zeros((0, 5), bool)
    for options in ({}, {"mask": marks}, {"reset_mask": marks}):
        call = compiled(lambda given, options=options: layer(given, **options))
        outputs, *states = call(np.zeros((0, 5, 3), "float32"))
        assert tuple(outputs.shape) == (0, 5, 4)
        assert all(state.shape[0] == 0 for state in states)
