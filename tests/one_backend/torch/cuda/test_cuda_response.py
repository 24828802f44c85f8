"""The impulse response of the CUDA core, called as PyTorch calls it."""

import keras
import numpy as np
import pytest
from support.autodiff import relative_error

if keras.backend.backend() != "torch":
    pytest.skip("here PyTorch calls the CUDA core", allow_module_level=True)

import torch
from operations.test_native_impulse_response import assert_gradients
from operations.test_native_impulse_response import core_gradients
from operations.test_native_impulse_response import core_response
from support.cuda_stand_in import stand_in as stand_in
from support.structured_systems import response_of
from support.structured_systems import system
from support.structured_systems import weights_of

import keras_linrec
from keras_linrec.kernels import backends
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch import operators
from keras_linrec.kernels.torch.operators import OPERATORS

pytestmark = pytest.mark.rest

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-11}
# Features, channels, state, time. A piece of the state has four entries or a
# multiple of them, and there are 16.
SIZES = [
    (1, 1, 1, 1),
    (3, 2, 1, 63),
    (2, 3, 3, 1),
    (2, 40, 5, 9),
    (3, 2, 63, 40),
    (2, 1, 65, 200),
    (1, 2, 130, 50),
]


def as_tensors(arrays, dtype, device="cpu"):
    return [torch.tensor(a, dtype=dtype, device=device) for a in arrays]


# How many times as fast float32 is as float64: the form depends on it.
FORMS = {"steps": 64, "contour": 2}


@pytest.fixture(params=FORMS)
def on_stand_in(request, stand_in, monkeypatch):
    """Operators on the CPU call the CUDA core, which has either form."""
    monkeypatch.setitem(operators.CALLS, "cpu", cuda.call)

    def set_up(**numbers):
        stand_in(ratio=FORMS[request.param], **numbers)

    set_up()
    yield set_up
    stand_in()


def results_of(arguments, weights, alpha, dtype, device="cpu"):
    """The response, and its gradients by the operators."""
    time = weights.shape[-1]
    given = as_tensors(arguments, dtype, device)
    (weights,) = as_tensors([weights], dtype, device)
    attributes = 0, time, alpha
    (response,) = OPERATORS["impulse_response"](*attributes, *given)
    wanted = [True] * len(given)
    gradients = OPERATORS["impulse_response_backward"](
        wanted, *attributes, *given, weights
    )
    return [tensor.cpu().double().numpy() for tensor in (response, *gradients)]


def case(sizes, moved=0.1):
    """Arguments, and the cotangent of the response."""
    arguments = system("legs", *sizes[:3], moved=moved)
    shape = *sizes[:2], sizes[3]
    return arguments, *weights_of([np.empty(shape)], seed=1)


def check(sizes, alpha, dtype, device="cpu"):
    arguments, weights = case(sizes)
    time, tolerance = sizes[-1], TOLERANCE[dtype]
    response, *gradients = results_of(arguments, weights, alpha, dtype, device)
    expected = response_of(*arguments, time, alpha)
    assert relative_error(response, expected) < tolerance
    assert_gradients(gradients, arguments, weights, time, alpha, tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_it_equals_the_definition(on_stand_in, sizes, dtype):
    for alpha in (0.5, 1.0):
        check(sizes, alpha, dtype)


@pytest.mark.rest
def test_long_responses_are_as_accurate(on_stand_in):
    arguments, weights = case((3, 1, 256, 3000))
    response, *gradients = results_of(arguments, weights, 0.5, torch.float32)
    given = {"block": -1, "dtype": "float64"}
    expected = core_response(arguments, 3000, **given)
    assert relative_error(response, expected) < 1e-6
    expected = core_gradients(arguments, weights, **given)
    for one, other in zip(gradients, expected, strict=True):
        assert relative_error(one, other) < 1e-6


def test_the_order_of_threads_changes_nothing(on_stand_in):
    arguments, weights = case((3, 2, 40, 30))
    expected = results_of(arguments, weights, 0.5, torch.float32)
    on_stand_in(backwards=1, processors=1)
    got = results_of(arguments, weights, 0.5, torch.float32)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_gradient_of_c_alone_is_the_same(on_stand_in):
    arguments, weights = case((3, 2, 9, 60))
    *_, expected = results_of(arguments, weights, 0.5, torch.float32)
    given = as_tensors([*arguments, weights], torch.float32)
    *others, gradient = OPERATORS["impulse_response_backward"](
        [False] * 6 + [True], 0, 60, 0.5, *given
    )
    assert not any(other.numel() for other in others)
    np.testing.assert_array_equal(gradient.numpy(), expected)


def test_several_systems_run_at_once(on_stand_in):
    arguments, weights = case((3, 2, 9, 20))
    pairs = [np.stack([array, 1.1 * array]) for array in arguments]
    weights = np.stack([weights, weights])
    both = results_of(pairs, weights, 0.5, torch.float64)
    for index in range(2):
        given = [pair[index] for pair in pairs]
        one = results_of(given, weights[index], 0.5, torch.float64)
        for part, whole in zip(one, both, strict=True):
            np.testing.assert_array_equal(whole[index], part)


@pytest.fixture
def in_both_forms(stand_in, monkeypatch):
    """Results in float64 step by step, and by the contour."""
    monkeypatch.setitem(operators.CALLS, "cpu", cuda.call)

    def run(arguments, weights):
        found = []
        for ratio in FORMS.values():
            stand_in(ratio=ratio)
            given = arguments, weights, 0.5, torch.float64
            found.append(results_of(*given))
        return found

    yield run
    stand_in()


def test_features_with_poles_in_the_circle_go_step_by_step(in_both_forms):
    arguments, weights = case((4, 2, 9, 60))
    # All eigenvalues of the matrix are positive.
    arguments[0] = -arguments[0]
    arguments[5] = np.array([1e-4, 0.03, 2e-4, 0.1])
    steps, contour = in_both_forms(arguments, weights)
    expected = response_of(*arguments, 60, 0.5)
    for feature, has_poles in enumerate([False, True, False, True]):
        for part in (0, 6, 7):
            one, other = (form[part][feature] for form in (steps, contour))
            # What grows little is as accurate as what decays.
            assert relative_error(one, other) < 1e-11
            assert np.array_equal(one, other) == has_poles
        assert relative_error(contour[0][feature], expected[feature]) < 1e-10
    for one, other in zip(contour, steps, strict=True):
        assert relative_error(one, other) < 1e-11


def test_one_hidden_pole_is_seen(in_both_forms):
    """Of a mode that grows from 1e-12, so that the first step tells nothing."""
    arguments, weights = case((1, 1, 2, 200), moved=0.0)
    # Diagonal, with eigenvalues -1 and 3.
    p, d, q, t, b, timescale, output_matrix = arguments
    p[:], q[:], d[:], b[:], timescale[:] = 1, 1, 0, 1, 0.1
    t[:] = [[0, 0], [-1, 1 / 3], [0, 0]]
    output_matrix[:] = [1, 1e-12]
    steps, contour = in_both_forms(arguments, weights)
    assert np.array_equal(steps[0], contour[0])
    assert np.abs(steps[0][..., -1]).max() > 1


@pytest.mark.parametrize("sizes", [(0, 2, 5, 9), (2, 0, 5, 9)])
def test_nothing_has_no_response_and_no_gradient(on_stand_in, sizes):
    arguments, weights = case(sizes)
    response, *gradients = results_of(arguments, weights, 0.5, torch.float32)
    assert response.shape == weights.shape
    assert not any(gradient.any() for gradient in gradients)


def test_a_layer_runs_on_it(on_stand_in, monkeypatch):
    """As on a GPU, where the convolution is the framework's."""
    layer = keras_linrec.layers.LSSL(4, state_size=8)
    inputs = torch.randn(2, 30, 4, generator=torch.manual_seed(1))

    def run():
        outputs = layer(inputs)
        weights = [weight.value for weight in layer.trainable_weights]
        slopes = torch.autograd.grad(
            (outputs**2).sum(), weights, materialize_grads=True
        )
        return [outputs, *slopes]

    calls = []

    def call(name, *given):
        calls.append(name)
        cuda.call(name, *given)

    monkeypatch.undo()
    expected = run()
    facts = {"platform": "cuda", "operators": True, "unrolled": False}
    monkeypatch.setattr(backends.current(), "describe", lambda tensor: facts)
    monkeypatch.setitem(operators.CALLS, "cpu", call)
    for one, other in zip(run(), expected, strict=True):
        arrays = (part.detach().numpy() for part in (one, other))
        assert relative_error(*arrays) < 2e-5
    assert calls == ["impulse_response", "impulse_response_backward"]


def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    for sizes in SIZES:
        for dtype in TOLERANCE:
            check(sizes, 0.5, dtype, "cuda")
