"""`ops.nonlinear_scan`, with the kernel that runs by default."""

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import gradient
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import each_kernel

from keras_linrec import activations
from keras_linrec import ops

NAMES = ("inputs", "input_kernel", "recurrent_kernel", "bias", "initial_state")


def operands(batch=2, time=5, features=2, units=3, gated=False, seed=0):
    generator = np.random.default_rng(seed)
    shapes = (
        (batch, time, features),
        (features, (1 + gated) * units),
        (units, units),
        ((1 + gated) * units,),
        (batch, units),
    )
    return [
        generator.uniform(-0.7, 0.7, shape).astype("float32")
        for shape in shapes
    ]


def scanned(arrays, **options):
    return ops.nonlinear_scan(**dict(zip(NAMES, arrays)), **options)


def simple_rnn(arrays):
    """Outputs and final state of a tanh recurrence without a solver."""
    inputs, kernel, recurrent, bias, state = arrays
    outputs = []
    for step in range(inputs.shape[1]):
        state = np.tanh(inputs[:, step] @ kernel + bias + state @ recurrent)
        outputs.append(state)
    return [np.stack(outputs, axis=1), state]


kernel = each_kernel("auto", "sequential")


def test_a_recurrence_without_a_solver_is_a_simple_rnn(kernel):
    arrays = operands(time=9)
    cotangents = [np.ones((2, 9, 3)), np.ones((2, 3))]
    for got, expected in zip(scanned(arrays), simple_rnn(arrays)):
        assert relative_error(to_numpy([got])[0], expected) < 1e-6
    got = backend_gradients(scanned, arrays, cotangents)
    expected = numerical_gradients(simple_rnn, arrays, cotangents)
    for name, one, other in zip(NAMES, got, expected, strict=True):
        assert relative_error(one, other) < 1e-5, name


def test_the_final_state_alone_equals_that_of_all_states(kernel):
    arrays = tensors(operands(time=6))
    every, final_state = scanned(arrays)
    nothing, alone = scanned(arrays, keep_all=False)
    assert nothing is None
    assert (to_numpy([alone])[0] == to_numpy([final_state])[0]).all()
    assert (to_numpy([every])[0][:, -1] == to_numpy([alone])[0]).all()


def test_it_is_differentiable_twice():
    options = {"solver": "euler", "step_size": 0.5}
    first, *others = operands()
    direction = tensors([operands(seed=1)[0]])[0]

    def slope(inputs):
        def loss(given):
            outputs, _ = scanned([given[0], *tensors(others)], **options)
            return keras.ops.sum(outputs * outputs)

        (derivative,) = gradient(loss)(inputs)
        return keras.ops.sum(derivative * direction)

    (got,) = to_numpy(gradient(slope)(tensors([first])))
    (expected,) = numerical_slope(slope, first)
    assert relative_error(got, expected) < 2e-2


def numerical_slope(slope, array, step=1e-2):
    difference = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        values = []
        for sign in (1, -1):
            moved = array.copy()
            moved[place] += sign * step
            values.append(float(to_numpy([slope(tensors([moved]))])[0]))
        difference[place] = (values[0] - values[1]) / (2 * step)
    return [difference]


@pytest.mark.parametrize("number", [1, np.float32(1), np.float64(1)])
def test_a_step_of_one_needs_no_solver(number):
    arrays = operands()
    got, _ = scanned(arrays, step_size=number)
    assert keras.backend.standardize_dtype(got.dtype) == "float32"
    assert relative_error(*to_numpy([got, scanned(arrays)[0]])) == 0


def test_a_custom_activation_is_accepted():
    arrays = operands()
    got, _ = scanned(arrays, activation=lambda x: keras.ops.tanh(1.0 * x))
    expected, _ = scanned(arrays)
    assert relative_error(*to_numpy([got, expected])) < 1e-6


def test_the_factors_of_a_transition_give_that_transition():
    inputs, kernel, _, bias, state = operands(units=4, time=7)
    generator = np.random.default_rng(3)
    left = generator.standard_normal((4, 2)).astype("float32") / 3
    right = generator.standard_normal((2, 4)).astype("float32") / 3
    one, other = (
        scanned([inputs, kernel, matrix, bias, state], activation="oplu")[0]
        for matrix in ((left, right), np.eye(4, dtype="float32") - left @ right)
    )
    assert relative_error(*to_numpy([one, other])) < 1e-6


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("inputs", (2, 5)),
        ("inputs", (2, 0, 2)),
        ("input_kernel", (3, 3)),
        ("recurrent_kernel", (3, 2)),
        ("recurrent_kernel", (0, 0)),
        ("bias", (4,)),
        ("initial_state", (2, 4)),
        ("linear_kernel", (3, 2)),
        ("step_size", (2, 4)),
        ("step_size", (2,)),
    ],
)
def test_a_wrong_shape_is_named(name, shape):
    arguments = {**dict(zip(NAMES, operands())), "solver": "euler"}
    with pytest.raises(ValueError, match=f"`{name}` .*Received"):
        ops.nonlinear_scan(**{**arguments, name: np.ones(shape, "float32")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "heun"}, "`solver` .* Received: solver=heun"),
        ({"gated": True}, "need a solver"),
        ({"linear_kernel": np.eye(3)}, "need a solver"),
        ({"step_size": 0.5}, "need a solver"),
        ({"activation": "oplu"}, "`units` should be even"),
        ({"modulus_bias": np.ones(1, "float32")}, "activation=tanh"),
    ],
)
def test_options_that_exclude_each_other_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        scanned(operands(), **options)


def test_modrelu_requires_its_bias():
    arrays = operands(units=4)
    with pytest.raises(ValueError, match=r"`modulus_bias` .* \(2,\)"):
        scanned(arrays, activation="modrelu")


def test_activations_of_pairs_require_an_even_number():
    with pytest.raises(ValueError, match="even number of features"):
        activations.oplu(np.ones((2, 3), "float32"))


def test_modrelu_shortens_complex_numbers_and_survives_zero():
    z = np.array([[3.0, 0.0, 1.0, 4.0, 0.0, 1.0]], "float32")
    bias = np.array([-1.0, 0.5, -2.0], "float32")

    def run(arguments):
        return [activations.modrelu(*arguments)]

    (got,) = to_numpy(run(tensors([z, bias])))
    assert np.allclose(got, [[2.4, 0.0, 0.0, 3.2, 0.0, 0.0]])
    slopes = backend_gradients(run, [z, bias], [np.ones((1, 6))])
    assert all(np.isfinite(slope).all() for slope in slopes)
