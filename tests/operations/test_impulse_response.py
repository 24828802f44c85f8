"""Every form of the impulse response against the plain definition."""

import keras
import numpy as np
import pytest
from keras import ops
from support.autodiff import BACKEND
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.structured_systems import response_of

from keras_linrec import config
from keras_linrec.kernels.operations.structured import (
    impulse_by_blocks as module,
)
from keras_linrec.kernels.operations.structured.powers import TransitionPowers
from keras_linrec.kernels.operations.structured.powers import impulse_by_powers
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.structured.discretization import discretise
from keras_linrec.ops.structured.hippo import StructuredTransition
from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.impulse_response import impulse_response
from keras_linrec.ops.structured.step import structured_scan_irregular

TIMESCALES = [1e-3, 1e-2, 1e-1]


def in_blocks(*arguments):
    *transition, timescale, output_matrix, time, alpha = arguments
    delta, input_vector = discretise(transition, timescale, alpha)
    return module.impulse_by_blocks(delta, input_vector, output_matrix, time)


def by_powers(*arguments):
    *transition, timescale, output_matrix, time, alpha = arguments
    delta, input_vector = discretise(transition, timescale, alpha)
    powers = TransitionPowers(delta, time)
    return impulse_by_powers(powers, input_vector, output_matrix)


def irregular(*arguments):
    """The response of systems with steps of different lengths."""
    *transition, timescale, output_matrix, time, alpha = arguments
    generator = np.random.default_rng(0)
    shape = (1, time, output_matrix.shape[0])
    time_deltas, inputs = tensors(
        [generator.uniform(0.5, 2, shape[:2]), generator.standard_normal(shape)]
    )
    outputs, _ = structured_scan_irregular(
        StructuredTransition(*transition),
        timescale,
        output_matrix,
        time_deltas,
        inputs,
        ops.zeros((1, shape[2], output_matrix.shape[2])),
        alpha,
    )
    return outputs


FORMS = {"in_blocks": in_blocks, "by_powers": by_powers}
forms = pytest.mark.parametrize("form", FORMS)


def systems(
    measure="legs", size=3, channels=1, perturbation=0.0, time_deltas=TIMESCALES
):
    """Float32 arguments: p, d, q, t, b, timescale and output matrix."""
    random = np.random.default_rng([size, channels])
    p, d, q, t, b = hippo(measure, size)
    if perturbation:
        p, d, q, t = (
            values * (1 + perturbation * random.uniform(-1, 1, values.shape))
            for values in (p, d, q, t)
        )
        t[0, :-1] += perturbation * random.uniform(-1, 1, size - 1)
    output_matrix = random.standard_normal((len(time_deltas), channels, size))
    output_matrix /= np.sqrt(size)
    arguments = (p, d, q, t, b, time_deltas, output_matrix)
    return [np.asarray(values, "float32") for values in arguments]


def expected_response(arguments, time, alpha=0.5):
    """C Abar^k Bbar, step by step in float64."""
    wide = (np.asarray(values, "float64") for values in arguments)
    return response_of(*wide, time, alpha)


def expected_change(arguments, directions, time, alpha=0.5, step=1e-6):
    """The derivative of the response along a change of all arguments."""

    def moved(sign):
        return expected_response(
            [a + sign * step * d for a, d in zip(arguments, directions)],
            time,
            alpha,
        )

    return (moved(1) - moved(-1)) / (2 * step)


def by_feature_error(got, expected):
    """Compare each feature relative to the size of its own response."""
    return max(relative_error(*pair) for pair in zip(got, expected))


def response_error(form, arguments, time, alpha=0.5):
    got = compiled(lambda given: FORMS[form](*given, time, alpha))(
        tensors(arguments)
    )
    return by_feature_error(
        to_numpy([got])[0], expected_response(arguments, time, alpha)
    )


@forms
@pytest.mark.parametrize(
    ("size", "time", "perturbations"),
    [
        (1, 1, (0.0, 0.3)),
        (2, 2, (0.0, 0.3)),
        (3, 63, (0.0, 0.3)),
        (64, 500, (0.0, 0.1, 0.3)),
        (256, 63, (0.0, 0.1)),
    ],
)
def test_the_response_equals_the_definition(form, size, time, perturbations):
    run = compiled(lambda given: FORMS[form](*given, time, 0.5))
    for measure in ("legs", "legt", "lagt"):
        for perturbation in perturbations:
            arguments = systems(measure, size, 2, perturbation)
            got = to_numpy([run(tensors(arguments))])[0]
            expected = expected_response(arguments, time)
            error = by_feature_error(got, expected)
            assert error < 5e-5, (measure, perturbation, error)


@pytest.mark.parametrize(
    ("alpha", "time_deltas"), [(1.0, [0.03, 1.0]), (0.0, [1e-3, 2e-3])]
)
def test_other_discretisations(alpha, time_deltas):
    arguments = systems(size=20, perturbation=0.1, time_deltas=time_deltas)
    assert response_error("in_blocks", arguments, 63, alpha) < 1e-5


@forms
def test_long_sequences(form):
    arguments = systems("legt", 8, time_deltas=[1e-4, 1e-2])
    assert response_error(form, arguments, 16384) < 5e-5


def directions_for(arguments, seed=2):
    """Random changes that leave the bands' unused entries at zero."""
    random = np.random.default_rng(seed)
    directions = [
        random.standard_normal(values.shape) * np.abs(values)
        for values in arguments
    ]
    directions[3][0, -1] = directions[3][2, -1] = 0.0
    return directions


def slopes(function, arguments, weights):
    """Gradients of sum(weights * function), one for every argument."""
    weights = ops.convert_to_tensor(np.asarray(weights, "float32"))
    slope = gradient(lambda given: ops.sum(function(*given) * weights))
    return to_numpy(compiled(slope)(tensors(arguments)))


@pytest.mark.parametrize(
    ("measure", "size", "channels", "time", "alpha"),
    [
        ("legs", 1, 1, 1, 0.5),
        ("legs", 64, 1, 500, 0.5),
        ("legt", 9, 3, 63, 1.0),
        ("lagt", 9, 3, 63, 0.0),
    ],
)
def test_gradients_of_every_argument(measure, size, channels, time, alpha):
    arguments = systems(measure, size, channels, perturbation=0.1 * (size > 1))
    # Euler's method is stable for short steps only.
    arguments[5] *= 1.0 if alpha else 0.05
    shape = (len(TIMESCALES), channels, time)
    weights = np.random.default_rng(1).standard_normal(shape)
    got = slopes(
        lambda *given: in_blocks(*given, time, alpha), arguments, weights
    )
    assert got[3][0, -1] == got[3][2, -1] == 0.0
    nowhere = [np.zeros(values.shape) for values in arguments]
    for index, direction in enumerate(directions_for(arguments)):
        directions = [*nowhere[:index], direction, *nowhere[index + 1 :]]
        change = expected_change(arguments, directions, time, alpha)
        expected = np.sum(change * weights)
        # An upper bound on the magnitude of the sum.
        scale = np.linalg.norm(got[index] * direction)
        error = abs(np.sum(got[index] * direction) - expected)
        assert error <= 1e-4 * max(scale, abs(expected)), (index, error, scale)


# The last one runs on PyTorch only, which differentiates just the operations in
# a custom gradient; the other backends take a minute to compile it.
@pytest.mark.parametrize(
    "form", [in_blocks] + [irregular] * (BACKEND == "torch")
)
def test_second_derivatives(form):
    # More steps than one block of the gradient.
    time = 18 if form is irregular else 40
    arguments = systems(size=4, channels=2, time_deltas=[0.3, 0.1])
    arguments[3][0, :-1] = 0.2
    directions = [0.1 * direction for direction in directions_for(arguments)]
    constants = tensors(directions)

    def first(given):
        return gradient(lambda inner: ops.sum(form(*inner, time, 0.5) ** 2))(
            given
        )

    def along(given):
        slopes = first(given)
        return sum(ops.sum(s * d) for s, d in zip(slopes, constants))

    got = to_numpy(compiled(gradient(along))(tensors(arguments)))
    run = compiled(first)
    above, below = (
        to_numpy(
            run(
                tensors(
                    a + sign * 0.01 * d for a, d in zip(arguments, directions)
                )
            )
        )
        for sign in (1, -1)
    )
    for second, up, down in zip(got, above, below):
        assert relative_error(second, (up - down) / 0.02) < 2e-3


def test_rows_in_a_loop_give_what_doubled_ones_give(monkeypatch):
    arguments = systems(size=6, channels=2)
    expected = expected_response(arguments, 45)
    for plan in [(0, 0), (0, 6), (3, 1)]:
        monkeypatch.setattr(module, "doublings", lambda *_, plan=plan: plan)
        got = to_numpy([in_blocks(*tensors(arguments), 45, 0.5)])[0]
        assert by_feature_error(got, expected) < 5e-6, plan


def test_doublings_reach_the_end_and_go_no_further():
    for state_size in (1, 64, 512):
        for time in (1, 2, 3, 63, 784, 16384):
            assert 2 ** sum(module.doublings(state_size, time, 1)) < 2 * time
    few, many = (sum(module.doublings(size, 784, 1)) for size in (8, 512))
    assert many < few


@pytest.fixture
def portable():
    config.set_kernel("sequential")
    yield
    config.set_kernel(None)


def test_a_kernel_that_has_the_response_computes_it(monkeypatch):
    def native(*arguments):
        return arguments

    monkeypatch.setattr(
        f"{impulse_response.__module__}.kernel_for", lambda *_, **facts: native
    )
    arguments = tensors(systems(size=4))
    got = impulse_response(arguments[:5], *arguments[5:], 9, 0.7)
    assert len(got) == 9 and got[-2:] == (9, 0.7)
    assert all(a is b for a, b in zip(got, arguments))


def test_the_chosen_form_equals_the_definition(portable):
    arguments = systems(size=7, channels=2, perturbation=0.1)
    given = tensors(arguments)
    got = to_numpy([impulse_response(given[:5], *given[5:], 31)])[0]
    expected = expected_response(arguments, 31)
    assert by_feature_error(got, expected) < 5e-6


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only there is it unknown")
def test_a_length_that_is_known_at_run_time_only():
    import tensorflow as tf

    arguments = systems(size=7, channels=2)

    @tf.function(input_signature=[tf.TensorSpec([], "int32")])
    def run(time):
        given = tensors(arguments)
        return impulse_response(given[:5], *given[5:], time)

    for time in (1, 100, 63):
        got = to_numpy([run(time)])[0]
        assert got.shape == (3, 2, time)
        expected = expected_response(arguments, time)
        assert by_feature_error(got, expected) < 5e-6


def test_a_system_that_grows_keeps_its_digits():
    """An unstable A: the last entry is the largest."""
    arguments = systems(size=5, time_deltas=[0.02])
    arguments[0] *= -1.0
    for form in ("in_blocks", "by_powers"):
        assert response_error(form, arguments, 63) < 1e-5


@pytest.mark.skipif(BACKEND != "torch", reason="JAX and TensorFlow keep none")
def test_tensors_kept_for_the_gradient_are_freed_with_the_result():
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        given = [tensor.requires_grad_() for tensor in tensors(systems())]
        responses = [form(*given, 20, 0.5) for form in FORMS.values()]
        inputs = ops.transpose(responses[0][:, :1, :], (1, 2, 0))
        responses.append(causal_convolution(inputs, responses[0]))
        kept = [weakref.ref(response) for response in responses]
        del responses
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


def test_float64_keeps_its_digits():
    if BACKEND == "jax":
        pytest.skip("float64 is off in JAX")
    arguments = systems(size=10, perturbation=0.1)
    given = [
        keras.ops.convert_to_tensor(values.astype("float64"), "float64")
        for values in arguments
    ]
    expected = expected_response(arguments, 63)
    for form in FORMS.values():
        got = form(*given, 63, 0.5)
        assert keras.backend.standardize_dtype(got.dtype) == "float64"
        got = keras.ops.convert_to_numpy(got)
        assert by_feature_error(got, expected) < 1e-12
