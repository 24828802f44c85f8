"""LDStack and LinearDynamicalSystem: what is theirs alone."""

import json

import keras
import numpy as np
import pytest
from definitions import ldstack as definition
from support.autodiff import compiled
from support.autodiff import relative_error
from support.units import array
from support.units import initial_states
from support.units import outputs_of
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem

FORMS = ("transpose", "companion")


def network_outputs(network, inputs, activation):
    """The nonlinear RNN, one step after another."""
    transition, entering, leaving, feedthrough, bias, *state_bias = network
    state = np.zeros((len(inputs), len(transition)))
    outputs = []
    for step in range(inputs.shape[1]):
        now = inputs[:, step].astype("float64")
        state = state @ transition.T + now @ entering.T
        state = activation(state + (state_bias[0] if state_bias else 0.0))
        outputs.append(state @ leaving.T + now @ feedthrough.T + bias)
    return np.stack(outputs, axis=1)


def simple_rnn(units=16, features=3, seed=0, **arguments):
    keras.utils.set_random_seed(seed)
    layer = keras.layers.SimpleRNN(units, return_sequences=True, **arguments)
    layer.build((None, None, features))
    if layer.cell.bias is not None:
        layer.cell.bias.assign(np.linspace(-0.3, 0.3, units))
    return layer


@pytest.mark.parametrize(
    ("features", "form"),
    [
        (1, {}),
        (3, {}),
        (1, {"eigenvalues": "unit", "basis": "companion", "state_size": 9}),
        (3, {"eigenvalues": "unit", "basis": "companion", "state_size": 9}),
        (3, {"eigenvalues": "hinge", "mimo": "general", "slope": 0.5}),
        (3, {"use_state_bias": True, "eigenvalues": "log_polar_hinge"}),
        (3, {"depth": 1, "slope": 0.5}),
        (3, {"activation": "linear", "mimo": "average", "depth": 7}),
    ],
    ids=lambda value: (
        "-".join(map(str, value.values())) if isinstance(value, dict) else None
    ),
)
def test_first_steps_are_those_of_the_nonlinear_network(features, form):
    keras.utils.set_random_seed(0)
    form = {"state_size": 6, "depth": 5, "activation": "tanh", **form}
    layer = LDStack(4, seed=3, **form)
    inputs = sequences(12, features=features)
    layer.build(inputs.shape)
    if layer.state_bias is not None:
        layer.state_bias.assign(np.linspace(-1, 1, 6))
    got = outputs_of(layer, inputs)
    is_linear = form["activation"] == "linear"
    activation = (lambda a: a) if is_linear else np.tanh
    network = layer.to_rnn()
    if form.get("mimo") == "average":
        projections = array(layer.projection).astype("float64")
        mean = projections.T @ projections / len(projections)
        assert np.allclose(mean, np.eye(features)) == (features == 1)
    expected = network_outputs(network, inputs, activation)
    exact = 12 if is_linear else layer.depth - 1
    error = np.abs(got - expected).max(axis=(0, 2))
    assert error[:exact].max(initial=0.0) < 1e-4
    if not is_linear:
        # And the others are not: there is something to approach.
        assert error[exact:].max() > 1e-3


@pytest.mark.parametrize("basis", ["learned", "companion"])
@pytest.mark.parametrize(
    "eigenvalues",
    ["standard", "unit", "hinge", "log_polar", "log_polar_hinge"],
)
def test_eigenvalues_of_the_network_are_the_parameters(eigenvalues, basis):
    features = 3
    layer = LDStack(
        2,
        state_size=12,
        eigenvalues=eigenvalues,
        basis=basis,
        initial_eigenvalues="low_discrepancy",
    )
    layer.build((None, None, features))
    randomise(layer)
    got = np.linalg.eigvals(layer.to_rnn()[0])
    systems = definition.systems(weights_of(layer), 12 // features, features)
    expected = np.concatenate([numbers for numbers, _ in systems])
    distances = np.abs(got[:, None] - expected)
    assert distances.min(axis=0).max() < 1e-4
    assert distances.min(axis=1).max() < 1e-4


def test_a_deep_stack_is_the_simple_rnn():
    rnn = simple_rnn()
    inputs = sequences(64)
    expected = outputs_of(rnn, inputs)
    errors = {
        depth: np.abs(
            outputs_of(LDStack.from_simple_rnn(rnn, depth), inputs) - expected
        ).max()
        for depth in (1, 8, 24, 65)
    }
    assert errors[65] < 1e-5
    assert errors[24] < 1e-3
    assert errors[1] > errors[8] > errors[24]


@pytest.mark.parametrize(
    ("activation", "arguments"),
    [
        ("relu", {"return_sequences": False}),
        ("elu", {"go_backwards": True, "use_bias": False}),
        ("linear", {}),
    ],
)
def test_a_simple_rnn_is_taken_over_as_it_is(activation, arguments):
    rnn = simple_rnn(5, activation=activation, return_state=True)
    config = {**rnn.get_config(), **arguments}
    other = keras.layers.SimpleRNN.from_config(config)
    other.build((None, None, 3))
    inputs = sequences(9)
    layer = LDStack.from_simple_rnn(other, depth=10)
    (state,) = initial_states(layer)

    def run(layer):
        return compiled(lambda x: layer(x[0], initial_state=x[1:]))(
            [inputs, state]
        )

    expected, got = run(other), run(layer)
    for one, two in zip(got, expected, strict=True):
        assert np.abs(array(one) - array(two)).max() < 1e-4
    again = LDStack.from_config(layer.get_config())
    again.build((None, None, 3))
    again.set_weights(layer.get_weights())
    same = run(again)
    assert np.abs(array(same[0]) - array(got[0])).max() < 1e-6


def test_a_given_network_is_read_back():
    generator = np.random.default_rng(0)
    given = [
        generator.standard_normal(shape)
        for shape in ((5, 5), (5, 2), (3, 5), (3, 2), (3,), (5,))
    ]
    given[0] *= 0.4
    *matrices, bias, state_bias = given
    layer = LDStack.from_rnn(
        *matrices, "tanh", 6, bias=bias, state_bias=state_bias
    )
    assert layer.depth == 6
    for one, other in zip(layer.to_rnn(), given, strict=True):
        assert np.abs(one - other).max() < 1e-5


@pytest.mark.parametrize("stateful", [False, True])
def test_what_a_simple_rnn_says_is_taken_over(stateful):
    rnn = keras.layers.SimpleRNN(
        4,
        dtype="mixed_bfloat16",
        stateful=stateful,
        dropout=0.25,
        return_sequences=True,
        zero_output_for_mask=True,
        seed=5,
        trainable=False,
    )
    inputs = sequences(6)
    rnn.build(inputs.shape)
    layer = LDStack.from_simple_rnn(rnn, depth=7)
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert layer.dropout == 0.25 and layer.zero_output_for_mask
    assert layer.stateful == stateful
    assert layer.seed == 5 and not layer.trainable_weights
    mask = np.array([[True, False, True, True, False, True]] * 2)
    got = array(keras.ops.cast(layer(inputs, mask=mask), "float32"))
    assert (got[:, [1, 4]] == 0).all() and (got[:, [0, 2]] != 0).all()
    if stateful:
        assert np.abs(array(layer.states[-1])).max() > 0


def test_a_simple_rnn_keeps_its_one_state():
    rnn = simple_rnn(return_state=True)
    inputs = sequences(8)
    # Too shallow for eight steps at once.
    layer = LDStack.from_simple_rnn(rnn, depth=4)
    outputs, state = rnn(inputs)
    got, got_state = layer(inputs)
    assert np.abs(array(got) - array(outputs)).max() > 1e-5
    assert np.abs(array(got_state) - array(got)[:, -1]).max() < 1e-5
    states = layer.get_initial_state(2)
    assert len(states) == 1
    # Three steps of a stack of four recurrences are exact, wherever they begin.
    for part in (inputs[:, :3], inputs[:, 3:6], inputs[:, 6:]):
        got, states = layer.call_with_states(part, states)
    assert np.abs(array(states[0]) - array(state)).max() < 1e-5
    states = layer.get_initial_state(2)
    for step in range(8):
        got, states = layer.step(inputs[:, step], states)
        assert np.abs(array(got) - array(outputs)[:, step]).max() < 1e-5
    again = LDStack.from_config(layer.get_config())
    assert again.one_state and len(again.state_shapes) == 1


def test_a_transition_of_a_large_norm_warns():
    matrices = 1.5 * np.eye(2), np.ones((2, 1)), np.eye(2), np.zeros((2, 1))
    with pytest.warns(UserWarning, match="norm 1.5: .* smaller `slope` than"):
        LDStack.from_rnn(*matrices)


def test_a_masked_step_with_a_state_bias_does_not_happen():
    layer = LDStack(3, state_size=6, use_state_bias=True, return_state=True)
    inputs = sequences(9)
    layer.build(inputs.shape)
    layer.state_bias.assign(np.linspace(-1, 1, 6))
    mask = np.arange(9) % 3 != 1
    both = np.stack([mask, mask])
    got = layer(inputs, mask=both)
    expected = layer(inputs[:, mask])
    assert np.abs(array(got[0])[:, mask] - array(expected[0])).max() < 1e-5
    for one, other in zip(got[1:], expected[1:], strict=True):
        assert np.abs(array(one) - array(other)).max() < 1e-5


@pytest.mark.parametrize("name", ["hinge", "log_polar_hinge"])
def test_equal_eigenvalues_part_in_training(name):
    layer = LDStack(
        2, state_size=2, eigenvalues=name, initial_eigenvalues=[0.5, 0.5]
    )
    model = keras.Sequential([keras.Input((None, 1)), layer])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    inputs = sequences(20, features=1)
    model.fit(inputs, np.roll(inputs, 3, 1) * np.ones(2), verbose=0)
    split = {"hinge": "eigenvalue_split"}.get(name, "log_split")
    assert (array(getattr(layer, split)) != 0).all()


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ([np.eye(2, 3), np.ones((2, 1))], "`transition` .* Received: trans"),
        ([1.0, np.ones((2, 1))], "`transition` should be a matrix"),
        ([np.eye(2) * 1j, np.ones((2, 1))], "finite real numbers"),
        ([np.eye(2), np.ones((3, 1))], "`transition` should have the shape"),
        ([np.array([[1.0, 1.0], [0.0, 1.0]]), np.ones((2, 1))], "diagonalis"),
        (
            [np.full((2, 2), np.nan), np.ones((2, 1))],
            "`transition` should be of finite",
        ),
    ],
)
def test_networks_that_do_not_fit_are_named(matrices, message):
    with pytest.raises(ValueError, match=message):
        LDStack.from_rnn(*matrices, np.eye(2), np.zeros((2, 1)))


def test_arguments_that_a_network_decides_are_named():
    matrices = np.eye(2), np.ones((2, 1)), np.eye(2), np.zeros((2, 1))
    with pytest.raises(ValueError, match="Received: mimo, basis"):
        LDStack.from_rnn(*matrices, mimo="average", basis="companion")
    with pytest.raises(ValueError, match="`bias` should have the shape"):
        LDStack.from_rnn(*matrices, bias=np.zeros(3))


def test_layers_that_are_no_simple_rnn_are_named():
    with pytest.raises(ValueError, match="that is built. Received"):
        LDStack.from_simple_rnn(keras.layers.SimpleRNN(4))
    with pytest.raises(ValueError, match="SimpleRNN that is built"):
        LDStack.from_simple_rnn(keras.layers.LSTM(4))
    with pytest.raises(ValueError, match="recurrent_dropout=0.5"):
        LDStack.from_simple_rnn(simple_rnn(recurrent_dropout=0.5))


@pytest.mark.parametrize(
    "form",
    [
        {"mimo": "general", "state_size": 64},
        {"eigenvalues": "unit", "state_size": 63},
        {
            "eigenvalues": "unit",
            "basis": "companion",
            "initial_eigenvalues": "low_discrepancy",
            "state_size": 48,
        },
        {"basis": "companion", "state_size": 63},
        {
            "eigenvalues": "hinge",
            "basis": "companion",
            "initial_eigenvalues": "chebyshev",
            "state_size": 18,
        },
    ],
    ids=lambda form: "-".join(map(str, form.values())),
)
def test_500_steps_of_64_states_equal_the_definition(form):
    layer = LDStack(4, slope=0.5, depth=3, seed=0, **form)
    inputs = sequences(500)
    got = outputs_of(layer, inputs)
    expected, *_ = definition.ldstack(
        weights_of(layer),
        inputs.astype("float64"),
        depth=3,
        slope=0.5,
        basis=layer.basis,
    )
    assert relative_error(got, expected) < 5e-5


def test_a_companion_form_beyond_float32_warns():
    layer = LDStack(eigenvalues="unit", state_size=64, basis="companion")
    with pytest.warns(UserWarning, match="loses digits in float32"):
        layer.build((None, None, 1))
    equal = {"initial_eigenvalues": [0.5, 0.5], "eigenvalues": "hinge"}
    layer = LDStack(state_size=2, basis="companion", **equal)
    with pytest.warns(UserWarning, match="condition number (inf|.e.1)"):
        layer.build((None, None, 1))
    # In other coordinates nearly equal eigenvalues are nothing special.
    layer = LDStack(2, state_size=2, **equal)
    assert np.isfinite(outputs_of(layer, sequences(9, features=1))).all()


@pytest.mark.parametrize("form", FORMS)
def test_systems_of_one_state_have_a_canonical_form(form):
    layer = LinearDynamicalSystem(2, state_size=3, seed=0)
    inputs = sequences(9)
    got = outputs_of(layer, inputs)
    network = *layer.to_canonical(form), array(layer.bias)
    expected = network_outputs(network, inputs, lambda a: a)
    assert relative_error(got, expected) < 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mimo", ["concatenate", "average", "general"])
@pytest.mark.parametrize("features", [1, 3])
def test_the_canonical_form_is_the_same_system(form, mimo, features):
    layer = LinearDynamicalSystem(
        2, state_size=9, eigenvalues="hinge", mimo=mimo, seed=4
    )
    inputs = sequences(20, features=features)
    layer.build(inputs.shape)
    got = outputs_of(randomise(layer), inputs)
    matrices = layer.to_canonical(form)
    bias = array(layer.bias)
    expected = network_outputs((*matrices, bias), inputs, lambda a: a)
    assert relative_error(got, expected) < 2e-5
    transition, entering, *_ = matrices
    size = 9 // features if mimo == "concatenate" else 9
    block = transition[:size, :size]
    if form == "transpose":
        block = block.T
    # Ones below the diagonal, and else but the last column nothing.
    assert (block[:, :-1] == np.eye(size, k=-1)[:, :-1]).all()
    if features == 1:
        first = 0 if form == "companion" else -1
        scale = array(layer.input_kernel)[0, 0] if mimo == "concatenate" else 1
        if mimo == "average":
            return
        assert np.allclose(entering[:, 0], scale * np.eye(9)[first])


def test_equal_eigenvalues_have_a_canonical_form_for_one_input():
    layer = LinearDynamicalSystem(
        2,
        state_size=4,
        eigenvalues="hinge",
        initial_eigenvalues=[0.5, 0.5, 0.3 + 0.4j, 0.3 - 0.4j],
    )
    inputs = sequences(20, features=1)
    got = outputs_of(layer, inputs)
    for form in FORMS:
        network = *layer.to_canonical(form), array(layer.bias)
        expected = network_outputs(network, inputs, lambda a: a)
        assert relative_error(got, expected) < 2e-5
    several = LinearDynamicalSystem(
        2,
        state_size=2,
        eigenvalues="hinge",
        mimo="general",
        initial_eigenvalues=[0.5, 0.5],
    )
    several.build((None, None, 3))
    with pytest.raises(ValueError, match="too close to one another"):
        several.to_canonical()


def test_what_a_layer_is_needs_a_built_one():
    with pytest.raises(ValueError, match="`to_rnn` needs .* built=False"):
        LDStack().to_rnn()
    with pytest.raises(ValueError, match="`to_canonical` needs"):
        LinearDynamicalSystem().to_canonical()
    layer = LinearDynamicalSystem(state_size=4)
    layer.build((None, None, 1))
    with pytest.raises(ValueError, match="`form` .* Received: form=modal"):
        layer.to_canonical("modal")


def test_more_projections_come_closer_to_the_unprojected_system():
    inputs = sequences(50, features=8)
    whole = LinearDynamicalSystem(2, state_size=8, mimo="general", seed=0)
    expected = outputs_of(whole, inputs)
    errors = []
    for count in (1, 4, 7, 8):
        layer = LinearDynamicalSystem(
            2, state_size=8, mimo="average", projections=count, seed=0
        )
        layer.build(inputs.shape)
        for weight in layer.weights:
            if weight.name != "projection":
                same = {w.name: w for w in whole.weights}[weight.name]
                weight.assign(array(same))
        errors.append(relative_error(outputs_of(layer, inputs), expected))
    assert errors[0] > errors[1] > errors[2] > 100 * errors[3]
    assert errors[3] < 1e-5


def test_a_last_output_alone_is_the_last_of_all():
    for cls, form in (
        (LinearDynamicalSystem, {"mimo": "average"}),
        (LDStack, {"mimo": "average", "eigenvalues": "hinge"}),
        (LDStack, {"use_state_bias": True}),
    ):
        layer = cls(3, state_size=9, **form)
        inputs = sequences(150)
        whole = outputs_of(layer, inputs)
        config = {**layer.get_config(), "return_sequences": False}
        last = cls.from_config(config)
        last.build(inputs.shape)
        last.set_weights(layer.get_weights())
        assert relative_error(outputs_of(last, inputs), whole[:, -1]) < 1e-5


def test_unit_eigenvalues_stay_on_the_circle_in_training():
    layer = LinearDynamicalSystem(2, state_size=6, eigenvalues="unit")
    model = keras.Sequential([keras.Input((None, 3)), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    inputs = sequences(20)
    before = array(layer.angle)
    model.fit(inputs, inputs[..., :2], verbose=0)
    assert (array(layer.angle) != before).any()
    eigenvalues = np.linalg.eigvals(layer.to_canonical()[0])
    assert np.abs(np.abs(eigenvalues) - 1).max() < 1e-6


def test_given_eigenvalues_are_kept_in_the_configuration():
    given = np.array([[0.5j, -0.5j, 0.9]])
    layer = LDStack(state_size=3, initial_eigenvalues=given)
    config = json.loads(json.dumps(layer.get_config()))
    again = LDStack.from_config(config)
    assert (again.initial_eigenvalues == given).all()
    again.build((None, None, 1))
    assert np.allclose(array(again.eigenvalue_imag), 0.5)


def test_a_state_size_that_is_no_multiple_is_named():
    with pytest.raises(ValueError, match="state_size=32, 3 features"):
        LDStack(state_size=32).build((None, None, 3))
    with pytest.raises(ValueError, match="of the shape .2,."):
        LDStack(state_size=4, initial_eigenvalues=[1j, -1j]).build((1, 1, 1))
