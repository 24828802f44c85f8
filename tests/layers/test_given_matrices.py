"""Layers that are made from given matrices, and from one another."""

import keras
import numpy as np
import pytest
from definitions.lssl import discretise
from definitions.orthogonal_rnn import householder
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec import ops
from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.layers import RotRNN


def orthogonal(size, seed=0):
    generator = np.random.default_rng(seed)
    return np.linalg.qr(generator.standard_normal((size, size)))[0]


def unitary(size):
    generator = np.random.default_rng(1)
    parts = generator.standard_normal((2, size, size))
    return np.linalg.qr(parts[0] + 1j * parts[1])[0]


def multiplied(reflectors):
    """H(u_1) H(u_2) ..., one after another."""
    size, count = reflectors.shape
    product = np.eye(size)
    for j in range(count):
        if reflectors[:, j].any():
            product = product @ householder(reflectors[j:, j], size)
    return product


# Algorithm 2.


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(1),
        -np.eye(1),
        np.eye(6),
        -np.eye(6),
        np.roll(np.eye(5), 1, axis=0),
        orthogonal(7),
        orthogonal(7) * ([1] * 6 + [-1]),
    ],
    ids=["1", "-1", "I", "-I", "shift", "random", "reflected"],
)
def test_a_real_orthogonal_matrix_is_the_product_of_its_reflectors(matrix):
    reflectors, sign = ops.reflectors_of(matrix)
    product = multiplied(reflectors)
    product[:, -1] *= sign
    assert np.abs(product - matrix).max() < 1e-13
    assert (np.triu(reflectors, 1) == 0).all()
    # None is zero, which training could not turn.
    assert np.allclose(np.linalg.norm(reflectors, axis=0), 1)


@pytest.mark.parametrize("angle", [1e-3, 1e-7, 1e-9])
def test_a_small_rotation_loses_no_digits(angle):
    c, s = np.cos(angle), np.sin(angle)
    matrix = np.eye(4)
    matrix[:2, :2] = [[c, -s], [s, c]]
    reflectors, sign = ops.reflectors_of(matrix)
    product = multiplied(reflectors)
    product[:, -1] *= sign
    # Smaller ones than 1e-6 count as none.
    assert np.abs(product - matrix).max() < (1e-15 if angle > 1e-6 else 1e-6)


def test_a_complex_unitary_matrix_is_the_product_of_its_reflectors():
    matrix = unitary(6)
    reflectors, phases = ops.reflectors_of(matrix)
    product = multiplied(reflectors[:6] + 1j * reflectors[6:])
    assert np.abs(product * np.exp(1j * phases) - matrix).max() < 1e-13


def test_fewer_reflections_suffice_for_a_product_of_as_few():
    generator = np.random.default_rng(2)
    matrix = np.eye(8)
    for _ in range(3):
        matrix = matrix @ householder(generator.standard_normal(8), 8)
    reflectors, sign = ops.reflectors_of(matrix, reflections=3)
    assert reflectors.shape == (8, 3) and sign == 1
    assert np.abs(multiplied(reflectors) - matrix).max() < 1e-13
    with pytest.raises(ValueError, match="as many as `matrix` needs"):
        ops.reflectors_of(matrix, reflections=2)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 2)), "should be square"),
        (np.ones((3, 3)), "should be orthogonal"),
        (1j * np.ones((3, 3)), "should be unitary"),
        (np.full((2, 2), np.nan), "finite"),
    ],
)
def test_matrices_without_reflectors_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        ops.reflectors_of(matrix)


@pytest.mark.parametrize("field", ["real", "complex"])
def test_an_orthogonal_rnn_has_the_given_transition_and_trains_from_it(field):
    matrix = orthogonal(6)
    if field == "complex":
        z = unitary(3)
        matrix = np.block([[z.real, -z.imag], [z.imag, z.real]])
    entering, bias = np.random.default_rng(3).standard_normal((2, 6, 2))
    layer = OrthogonalRNN.from_rnn(
        matrix, entering, bias[:, 0], field=field, activation="linear"
    )
    assert np.abs(array(layer.transition_matrix()) - matrix).max() < 1e-6
    inputs = sequences(9, 3, 2)
    state = np.zeros((3, 6))
    for step in inputs.astype("float64").swapaxes(0, 1):
        state = state @ matrix.T + step @ entering.T + bias[:, 0]
    assert np.abs(array(layer(inputs)) - state).max() < 1e-4


def test_a_given_orthogonal_rnn_is_that_of_its_own_matrices():
    layer = OrthogonalRNN(12, 3)
    layer.build((None, None, 2))
    again = OrthogonalRNN.from_rnn(
        array(layer.transition_matrix()),
        array(layer.kernel).T,
        array(layer.bias),
        reflections=3,
    )
    for one, other in zip(layer.weights, again.weights):
        # A reflection at -u is that at u.
        assert np.allclose(np.abs(one), np.abs(other), atol=1e-5)


def test_a_complex_transition_has_to_have_its_form():
    with pytest.raises(ValueError, match=r"\[\[A, -B\], \[B, A\]\]"):
        OrthogonalRNN.from_rnn(orthogonal(4), np.ones((4, 1)), field="complex")
    with pytest.raises(ValueError, match="Received: units"):
        OrthogonalRNN.from_rnn(orthogonal(4), np.ones((4, 1)), units=4)


# Systems.


def a_system(size=7, features=3, units=2, seed=0):
    """Random matrices; A has real and complex eigenvalues, all stable."""
    generator = np.random.default_rng(seed)
    draw = generator.standard_normal
    transition = draw((size, size))
    radius = np.abs(np.linalg.eigvals(transition)).max()
    return (
        0.9 * transition / radius,
        draw((size, features)),
        draw((units, size)),
        draw((units, features)),
    )


def outputs_of(system, inputs, delayed=False):
    transition, entering, leaving, feedthrough = system
    state = np.zeros((len(inputs), len(transition)))
    outputs = []
    for now in inputs.astype("float64").swapaxes(0, 1):
        before, state = state, state @ transition.T + now @ entering.T
        read = before if delayed else state
        outputs.append(read @ leaving.T + now @ feedthrough.T)
    return np.stack(outputs, axis=1)


@pytest.mark.parametrize("delayed", [False, True])
def test_a_linear_system_computes_what_the_given_matrices_say(delayed):
    system = a_system()
    layer = LinearDynamicalSystem.from_state_space(
        *system, bias=[1.0, -2.0], delayed=delayed
    )
    inputs = sequences(30)
    expected = outputs_of(system, inputs, delayed) + [1.0, -2.0]
    assert np.abs(array(layer(inputs)) - expected).max() < 1e-4


def test_equal_eigenvalues_without_a_chain_are_a_system_too():
    system = (0.5 * np.eye(4), *a_system(4)[1:])
    layer = LinearDynamicalSystem.from_state_space(*system)
    inputs = sequences(9)
    expected = outputs_of(system, inputs)
    assert np.abs(array(layer(inputs)) - expected).max() < 1e-5


def test_systems_that_a_layer_cannot_hold_are_refused():
    delay_line = (np.eye(3, k=-1), np.eye(3)[:, :1], np.eye(3), np.ones((3, 1)))
    for cls in (LinearDynamicalSystem, LSSL):
        with pytest.raises(ValueError, match="should be diagonalisable"):
            cls.from_state_space(*delay_line)
        with pytest.raises(ValueError, match="`outputs` should have the shape"):
            cls.from_state_space(*delay_line[:2], np.ones((3, 2)), 1.0)
        with pytest.raises(ValueError, match="Received: state_size"):
            cls.from_state_space(*delay_line, state_size=3)
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="should be invertible"):
        LinearDynamicalSystem.from_state_space(
            0 * one, one, one, one, delayed=True
        )
    with pytest.raises(ValueError, match="`from_rnn`"):
        LDStack.from_state_space(one, one, one, one)
    with pytest.raises(ValueError, match="`dt` should be a positive number"):
        LSSL.from_state_space(-one, one, one, one, dt=[0.1, 0.2])


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("with_zero", [False, True], ids=["", "integrator"])
def test_an_lssl_computes_what_the_given_matrices_say(alpha, with_zero):
    transition, *rest = a_system()
    # Every real part is negative.
    transition = transition - np.eye(7)
    if with_zero:
        transition[0], transition[:, 0] = 0, 0
    layer = LSSL.from_state_space(
        transition, *rest, dt=0.3, bias=[1.0, -2.0], alpha=alpha
    )
    entering, leaving, feedthrough = rest
    discrete = discretise(transition, entering, 0.3, alpha)
    inputs = sequences(30)
    expected = outputs_of((*discrete, leaving, feedthrough), inputs)
    expected = expected + [1.0, -2.0]
    assert np.abs(array(layer(inputs)) - expected).max() < 1e-4
    states = layer.get_initial_state(2)
    output, _ = layer.step(inputs[:, 0], states)
    assert np.abs(array(output) - expected[:, 0]).max() < 1e-4


def test_a_given_lssl_is_saved_and_loaded(tmp_path):
    transition, *rest = a_system()
    layer = LSSL.from_state_space(transition - np.eye(7), *rest)
    model = keras.Sequential([keras.Input((20, 3)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    inputs = sequences(20)
    assert np.allclose(array(model(inputs)), array(again(inputs)), atol=1e-6)


# What the LSSL paper says of steps of their own length.


def test_a_gate_is_backward_euler_with_steps_of_exp_z():
    """Lemma 3.1 of Gu et al. 2021."""
    one = np.ones((1, 1))
    layer = LSSL.from_state_space(-one, one, one, 0 * one, alpha=1.0)
    inputs = sequences(40, 3, 1)
    z = np.random.default_rng(4).normal(0, 2, (3, 40))
    gate = 1 / (1 + np.exp(-z))
    state = np.zeros(3)
    expected = []
    for t in range(40):
        state = (1 - gate[:, t]) * state + gate[:, t] * inputs[:, t, 0]
        expected.append(state)
    outputs = layer(inputs, time_deltas=np.exp(z).astype("float32"))
    expected = np.stack(expected, axis=1)
    assert np.abs(array(outputs)[..., 0] - expected).max() < 1e-6


def test_steps_of_one_over_k_remember_all_of_the_past_evenly():
    """Theorem 7 of Gu et al. 2021: LegS with a window that grows with time."""
    size, steps = 6, 2000
    layer = LSSL(1, size, return_state=True)
    layer.build((None, None, 1))
    layer.log_timescale.assign([0.0])
    times = (np.arange(steps) + 0.5) / steps
    signal = np.sin(5 * times) + times
    deltas = 1 / np.arange(1, steps + 1)
    _, state = layer(
        signal.reshape(1, -1, 1).astype("float32"),
        time_deltas=deltas[None].astype("float32"),
    )
    # Coefficients of the whole signal, for the normalised polynomials.
    coefficients = [
        np.sqrt(2 * n + 1)
        * np.mean(signal * np.polynomial.Legendre.basis(n)(2 * times - 1))
        for n in range(size)
    ]
    assert np.abs(array(state)[0, 0] - coefficients).max() < 5e-3


# RotRNN and LRU.


@pytest.mark.parametrize("heads", [1, 3, 6], ids=["12", "4", "2"])
@pytest.mark.parametrize("units", [3, 5])
def test_a_rotrnn_is_an_lru(heads, units):
    layer = RotRNN(units, state_size=12, num_heads=heads, activation="tanh")
    layer.build((None, None, 3))
    randomise(layer)
    inputs = sequences(40)
    same = LRU.from_rotrnn(layer)
    assert same.state_size == 6
    assert np.abs(array(layer(inputs)) - array(same(inputs))).max() < 1e-4


def test_a_rotrnn_with_heads_of_an_odd_size_is_an_lru():
    layer = RotRNN(4, state_size=9, num_heads=3, return_sequences=False)
    layer.build((None, None, 3))
    inputs = sequences(40)
    same = LRU.from_rotrnn(layer)
    assert not same.return_sequences
    assert np.abs(array(layer(inputs)) - array(same(inputs))).max() < 1e-4


def test_an_lru_is_a_rotrnn_with_heads_of_two_and_back():
    layer = LRU(5, state_size=7)
    layer.build((None, None, 3))
    randomise(layer)
    # A state without inputs.
    for weight in (layer.input_real, layer.input_imag):
        weight.assign(array(weight) * [0, 1, 1, 1, 1, 1, 1])
    inputs = sequences(40)
    same = RotRNN.from_lru(layer)
    assert same.num_heads == 7 and same.state_size == 14
    expected = array(layer(inputs))
    for other in (same, LRU.from_rotrnn(same)):
        assert np.abs(array(other(inputs)) - expected).max() < 1e-4


def test_what_is_no_such_layer_is_refused():
    lru, rotrnn = LRU(4), RotRNN(4, bidirectional=True)
    with pytest.raises(ValueError, match="of the class LRU"):
        RotRNN.from_lru(lru)
    lru.build((None, None, 3))
    with pytest.raises(ValueError, match="of the class RotRNN"):
        LRU.from_rotrnn(lru)
    rotrnn.build((None, None, 3))
    with pytest.raises(ValueError, match="one direction"):
        LRU.from_rotrnn(rotrnn)
