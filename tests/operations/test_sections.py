"""Projected scans that keep the states of a section of time at once."""

from functools import partial

import keras
import numpy as np
import pytest
from selection import WEEKLY
from selection import standing_for_all
from support.autodiff import backend_gradients
from support.autodiff import gradient
from support.autodiff import relative_error

from keras_linrec import kernels
from keras_linrec.kernels import backends
from keras_linrec.kernels import sections
from keras_linrec.kernels.operations import projected_scan as plain


@pytest.fixture
def short_sections(monkeypatch):
    """Twenty-three steps make two sections, the last a step shorter."""
    monkeypatch.setattr(sections, "_BYTES", 16 * 8)


def operands(parts, per_step, time=23):
    """Decay, inputs, kernels and initial state; cotangents of the results."""
    rng = np.random.default_rng([parts, per_step])
    batch, features, channels, units = 2, 3, 4, 5
    shapes = (
        [(batch, time, channels) if per_step else (channels,)] * parts
        + [(batch, time, features)]
        + [(features, channels)] * parts
        + [(channels, units)] * parts
        + [(batch, channels)] * parts
    )
    arrays = [rng.uniform(-0.6, 0.6, s).astype("float32") for s in shapes]
    cotangents = [(batch, time, units)] + [(batch, channels)] * parts
    return arrays, [
        rng.standard_normal(s).astype("float32") for s in cotangents
    ]


def fastest():
    """The kernel that runs here by default."""
    return kernels.registry.load(kernels.registry.choose("auto"))


def of_a_list(function, parts):
    """A projected scan as a function from and to lists."""

    def flat(tensors):
        decay, rest = tensors[:parts], tensors[parts:]
        inputs, rest = rest[0], rest[1:]
        groups = [tuple(rest[i * parts : (i + 1) * parts]) for i in range(3)]
        outputs, state = function(tuple(decay), inputs, *groups)
        return [outputs, *state]

    return flat


def results_and_gradients(function, parts, arrays, cotangents):
    tensors = [keras.ops.convert_to_tensor(a) for a in arrays]
    upstream = [keras.ops.convert_to_tensor(a) for a in cotangents]
    results = backends.current().vjp(
        of_a_list(function, parts), tensors, upstream
    )
    return [keras.ops.convert_to_numpy(part) for part in results]


def test_a_single_section_is_the_plain_form():
    arrays, cotangents = operands(2, False)
    scan = kernels.registry.load("reference").scan
    results = [
        results_and_gradients(form, 2, arrays, cotangents)
        for form in (
            backends.current().by_sections(scan),
            partial(plain.projected_scan, scan),
        )
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("resets", [False, True], ids=["whole", "resets"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("parts", [1, 2], ids=["real", "complex"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_sections_equal_the_whole(
    short_sections, per_step, parts, reverse, resets
):
    arrays, cotangents = operands(parts, per_step)
    assert sections.section_length(2, 23, 4 * parts) == 12
    options = {"reverse": reverse}
    if resets:
        marks = np.zeros((2, 23), "float32")
        marks[0, 11] = marks[1, 13] = 1.0
        options["resets"] = keras.ops.convert_to_tensor(marks)
    scan = fastest().scan
    results = [
        results_and_gradients(
            partial(form, **options), parts, arrays, cotangents
        )
        for form in (
            backends.current().by_sections(scan),
            partial(plain.projected_scan, scan),
        )
    ]
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) < 1e-6


@pytest.mark.parametrize("parts", [1, 2], ids=["real", "complex"])
def test_second_derivatives_equal_those_of_the_whole(short_sections, parts):
    arrays, cotangents = operands(parts, False)
    scan = fastest().scan

    def second_derivatives(form):
        def loss(tensors):
            results = of_a_list(form, parts)(tensors)
            return sum(
                keras.ops.sum(result**2 * keras.ops.convert_to_tensor(weight))
                for weight, result in zip(cotangents, results, strict=True)
            )

        return backend_gradients(
            gradient(loss), arrays, [np.ones_like(part) for part in arrays]
        )

    for one, other in zip(
        second_derivatives(backends.current().by_sections(scan)),
        second_derivatives(partial(plain.projected_scan, scan)),
        strict=True,
    ):
        assert relative_error(one, other) < 1e-6


only_in_programs_of_unknown_sizes = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="only TensorFlow has programs of unknown sizes",
)


@only_in_programs_of_unknown_sizes
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("time", [1, 12, 23])
@pytest.mark.parametrize("under_xla", [False, True], ids=["graph", "xla"])
def test_sections_of_unknown_sizes(short_sections, under_xla, time, reverse):
    arguments = operands(2, True, time)
    require_whole(arguments, fastest().scan, (None, None), under_xla, reverse)


@only_in_programs_of_unknown_sizes
@pytest.mark.parametrize(
    ("known", "per_step"),
    standing_for_all(
        [
            (known, per_step)
            for known in [(None, None), (2, None), (None, 23)]
            for per_step in (False, True)
        ],
        # Each kind of decay, where the loop knows the batch.
        [((2, None), False), ((2, None), True)],
        part=WEEKLY,
    ),
)
def test_sections_keep_the_sizes_that_are_known(
    short_sections, known, per_step
):
    # This scan reads the number of channels, and the loop the batch.
    scan = kernels.registry.load("associative").scan
    require_whole(operands(2, per_step), scan, known)


def require_whole(arguments, scan, known, under_xla=False, reverse=False):
    """Compare sections in a program that knows some sizes with the whole.

    Args:
        arguments: the arrays and cotangents of `operands`.
        scan: a kernel's function.
        known: pair of batch and time, `None` where unknown.
        under_xla: boolean. Defaults to `False`.
        reverse: boolean. Defaults to `False`.
    """
    import tensorflow as tf

    arrays, cotangents = arguments
    form = partial(backends.current().by_sections(scan), reverse=reverse)

    @tf.function(autograph=False, jit_compile=under_xla)
    def run(arrays, cotangents):
        assert arrays[2].shape.as_list() == [*known, 3]
        function = of_a_list(form, 2)
        return backends.current().vjp(function, arrays, cotangents)

    def unknown(part):
        # The batch, and the time of sequences; weights have their sizes.
        shape = list(part.shape)
        if part.ndim == 3:
            shape[:2] = known
        elif shape[0] == 2:
            shape[0] = known[0]
        return tf.TensorSpec(shape, part.dtype)

    specs = [list(map(unknown, group)) for group in arguments]
    results = run.get_concrete_function(*specs)(
        *([tf.constant(part) for part in group] for group in arguments)
    )
    whole = partial(plain.projected_scan, scan, reverse=reverse)
    expected = results_and_gradients(whole, 2, arrays, cotangents)
    for one, other in zip(results, expected, strict=True):
        assert relative_error(one.numpy(), other) < 1e-6


def test_sections_are_as_long_as_the_cache_allows():
    # (32, 784) with 256 complex channels: 200 steps fit, so that there are four
    # sections.
    assert sections.section_length(32, 784, 512) == 196
    # All steps, if they fit; and never fewer than a few.
    assert sections.section_length(1, 5000, 512) == 5000
    assert sections.section_length(4096, 100, 512) == 15
    assert sections.section_length(0, 5, 4) == 5


def test_projected_scans_on_nvidia_gpus_have_this_form():
    (decision,) = kernels.explain(
        "projected_scan", (32, 784, 512), platform="cuda"
    )
    assert decision.form == "sections"
    # A program of TensorFlow may learn its sizes when it runs.
    (decision,) = kernels.explain(
        "projected_scan", (None, None, 512), platform="cuda"
    )
    assert decision.form == "sections"
