"""What units promise holds for any weights, whatever has moved them.

Keras' optimizers constrain weights after an update. Here they are moved by
plain steps of gradient ascent, which know of no constraint.
"""

import keras
import numpy as np
import pytest
from definitions import lssl as definition
from keras import ops
from support.autodiff import backend_gradients
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import squared_slopes
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.units import UNITS
from support.units import array
from support.units import initial_states
from support.units import outputs_of
from support.units import sequences
from support.units import weights_of

from keras_linrec import constraints
from keras_linrec.analysis import orthogonality_defect
from keras_linrec.analysis import stability_certificate

# The forms of the promise that W is orthogonal.
ORTHOGONAL = {
    "a reflection for each unit": {"units": 4, "reflections": 4},
    "few reflections": {"units": 12, "reflections": 2},
    "complex": {"units": 6, "reflections": 2, "field": "complex"},
    "one unit": {"units": 1, "reflections": 1},
}
FORMS = list(ORTHOGONAL.values())
# By the two conditions on T.
STABLE = [
    {"stable_transition": True, "measure": measure}
    for measure in ("legs", "legt")
]
# A map and its definition, for numbers of which some are within the bounds.
BOUNDS = {
    "from below": (
        constraints.Between(minimum=0.3).within,
        lambda x: definition.mirrored(x, 0.3),
    ),
    "from above": (
        constraints.Between(maximum=-0.3).within,
        lambda x: -definition.mirrored(-x, 0.3),
    ),
    "contractive": (
        constraints.ContractiveBands().within,
        definition.contractive_bands,
    ),
    "accretive": (
        constraints.AccretiveBands().within,
        definition.accretive_bands,
    ),
}


def ascend(layer, steps=30, size=0.05):
    """Adam without constraints, towards larger outputs, on assigned weights."""
    inputs = sequences(5)
    layer.build(inputs.shape)
    weights = layer.trainable_variables

    def loss(arguments):
        outputs, _ = layer.stateless_call(
            arguments, layer.non_trainable_variables, inputs
        )
        return -ops.sum(ops.square(outputs))

    slopes_of = compiled(gradient(loss))
    mean = [0.0] * len(weights)
    square = [0.0] * len(weights)
    for step in range(1, steps + 1):
        slopes = to_numpy(slopes_of(tensors(to_numpy(weights))))
        for index, (weight, slope) in enumerate(zip(weights, slopes)):
            mean[index] = 0.9 * mean[index] + 0.1 * slope
            square[index] = 0.999 * square[index] + 0.001 * slope**2
            root = np.sqrt(square[index] / (1 - 0.999**step)) + 1e-9
            move = size * mean[index] / (1 - 0.9**step) / root
            weight.assign(array(weight) - move)
    return layer


def have_left(layer):
    """Whether a stored weight is outside of what its constraint permits."""
    return any(
        np.abs(array(weight.constraint(weight.value)) - array(weight)).max()
        > 0.01
        for weight in layer.weights
        if weight.constraint is not None
    )


@pytest.mark.parametrize("form", ORTHOGONAL.values(), ids=ORTHOGONAL)
def test_a_matrix_is_orthogonal_whatever_moves_its_weights(form):
    layer = ascend(UNITS["orthogonal_rnn"](**form))
    assert have_left(layer)
    assert orthogonality_defect(layer) < 2e-6
    for weight in layer.trainable_variables:
        weight.assign(-3.0 * array(weight) - 0.7)
    assert orthogonality_defect(layer) < 2e-6


@pytest.mark.parametrize("form", STABLE, ids=["legs", "legt"])
def test_a_transition_is_dissipative_whatever_moves_its_weights(form):
    layer = ascend(UNITS["lssl"](state_size=5, **form))
    assert have_left(layer)
    spectrum = layer.spectrum()
    assert spectrum.dissipative
    assert np.abs(spectrum.discrete).max() < 1 + 1e-6


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_a_step_contracts_whatever_moves_its_weights(solver):
    form = {"stable_transition": True, "trainable_step_size": True}
    layer = ascend(UNITS["lipschitz_rnn"](solver=solver, **form))
    # The certificate takes the step size that a layer was given.
    step_size = float(np.exp(array(layer.log_step_size)))
    same = UNITS["lipschitz_rnn"](solver=solver, step_size=step_size, **form)
    same.build((None, None, 3))
    same.set_weights(layer.get_weights())
    assert stability_certificate(same).step_stable


def test_a_matrix_is_antisymmetric_whatever_moves_its_weights():
    layer = ascend(UNITS["antisymmetric_rnn"](gamma=0.5))
    matrix = array(layer.recurrent_matrix())
    assert np.abs(matrix + matrix.T + np.eye(4)).max() < 1e-6


@pytest.mark.parametrize("name", ["rotrnn", "lru", "linear_dynamical_system"])
def test_states_do_not_grow_whatever_moves_their_weights(name):
    layer = ascend(UNITS[name](), size=0.2)
    modulus = np.hypot(*map(array, layer.diagonal_system().decay))
    assert modulus.max() < 1 + 1e-6
    if name == "linear_dynamical_system":
        assert modulus.min() > 1 - 1e-6


# Every path computes with the same weights.


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("orthogonal_rnn", ORTHOGONAL["a reflection for each unit"]),
        *(("lssl", form) for form in STABLE),
    ],
    ids=["orthogonal", "legs", "legt"],
)
def test_all_paths_see_the_weights_within_their_bounds(name, form):
    layer = UNITS[name](return_state=True, **form)
    inputs = sequences(4)
    layer.build(inputs.shape)
    generator = np.random.default_rng(3)
    for weight in layer.weights:
        noise = generator.standard_normal(weight.shape)
        weight.assign(array(weight) + 0.4 * noise)
    if name == "orthogonal_rnn":
        layer.sign.assign(-0.4)
    assert have_left(layer)
    (state,) = initial_states(layer)
    expected, expected_state = UNITS[name].defined(
        form, weights_of(layer), *(a.astype("float64") for a in (inputs, state))
    )
    mask = np.ones((2, 4), bool)
    even = np.ones((2, 4), "float32")
    calls = [{}, {"mask": mask}, {"reset_mask": ~mask}]
    if UNITS[name].takes_time_deltas:
        calls.append({"time_deltas": even})
    for options in calls:
        outputs, final = layer(inputs, initial_state=[state], **options)
        assert relative_error(array(outputs), expected) < 2e-5
        assert relative_error(array(final), expected_state) < 2e-5
    for ahead in (None, layer.step_constants()):
        states = [state]
        for step in range(4):
            output, states = layer.step(inputs[:, step], states, ahead)
            assert relative_error(array(output), expected[:, step]) < 5e-5
    layer.return_state = False
    plain, _ = UNITS[name].defined(
        form, weights_of(layer), inputs.astype("float64")
    )
    assert relative_error(outputs_of(layer, inputs), plain) < 2e-5


# The maps.


def numbers(scale=1.0):
    return scale * np.random.default_rng(4).standard_normal((3, 5))


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_bounded_weights_have_true_slopes_of_two_orders(bound):
    within, defined = bound
    given = [numbers()]
    cotangents = [np.random.default_rng(5).standard_normal((3, 5))]
    expected = numerical_gradients(lambda x: [defined(x[0])], given, cotangents)
    got = backend_gradients(lambda x: [within(x[0])], given, cotangents)
    assert relative_error(got[0], expected[0]) < 1e-4

    def squares(x):
        (slope,) = numerical_gradients(
            lambda y: [defined(y[0]) ** 2], x, np.ones((1, 3, 5)), 1e-4
        )
        return [slope**2]

    expected = numerical_gradients(squares, given, np.ones((1, 3, 5)), 1e-4)
    second = gradient(squared_slopes(lambda x: [within(x[0])]))
    got = to_numpy(compiled(second)(tensors(given)))
    assert relative_error(got[0], expected[0]) < 1e-3


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_bounded_weights_are_the_definitions_and_fulfil_their_condition(bound):
    within, defined = bound
    constraint = within.__self__
    given = numbers()
    assert np.abs(array(constraint(given)) - given).max() > 0.1
    got = array(within(given.astype("float32")))
    assert relative_error(got, defined(given)) < 1e-6
    assert np.abs(array(constraint(got)) - got).max() < 1e-6


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_constrained_weights_stay_and_pass_their_slopes_on(bound):
    """On the boundary, too, where rounding carries them outside."""
    within, _ = bound
    weight = array(within.__self__(numbers(3.0).astype("float32")))
    assert np.abs(array(within(weight)) - weight).max() < 1e-6
    cotangents = np.random.default_rng(5).standard_normal((3, 5))
    (slope,) = backend_gradients(
        lambda x: [within(x[0])], [weight], [cotangents]
    )
    # The last entries of the outer bands belong to no weight.
    assert np.abs(slope - cotangents)[:, :-1].max() < 1e-5


def test_a_weight_outside_can_reach_what_is_inside():
    """Its image can, where a nearest point would stay on the boundary."""
    within = constraints.ContractiveBands().within
    target = np.array([[0.3, 0.0], [0.5, 0.8], [0.2, 0.0]], "float32")
    weight = np.array([[0.5, 0.0], [0.1, 0.9], [0.3, 0.0]], "float32")
    (aim,) = tensors([target])

    def loss(given):
        return ops.sum(ops.square(within(given[0]) - aim))

    slope = compiled(gradient(loss))
    for _ in range(60):
        weight = weight - 0.2 * array(slope(tensors([weight]))[0])
    assert np.abs(array(within(weight)) - target).max() < 1e-2


def test_a_sign_is_one_or_minus_one_and_its_slope_moves_it():
    within = constraints.Sign().within
    weight = np.float32(0.3)
    assert float(within(weight)) == 1.0

    def loss(given):
        return ops.square(within(given[0]) + 1.0)

    for _ in range(3):
        weight = weight - 0.1 * array(gradient(loss)(tensors([weight]))[0])
    assert float(within(weight)) == -1.0


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="It trains by torch.optim."
)
def test_an_optimizer_of_pytorch_keeps_the_promises():
    import torch

    inputs = torch.as_tensor(sequences(20))
    orthogonal = UNITS["orthogonal_rnn"](4, reflections=4)
    stable = UNITS["lssl"](stable_transition=True)
    for layer in (orthogonal, stable):
        keras.utils.set_random_seed(0)
        layer(inputs)
        optimizer = torch.optim.Adam(layer.parameters(), 0.05)
        for _ in range(30):
            optimizer.zero_grad()
            layer(inputs).square().mean().backward()
            optimizer.step()
        assert have_left(layer)
    assert orthogonality_defect(orthogonal) < 2e-6
    assert stable.spectrum().dissipative
