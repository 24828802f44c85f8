"""Stability certificates, spectra, the monitor and the plots."""

import keras
import numpy as np
import pytest

from keras_linrec.analysis import StabilityMonitor
from keras_linrec.analysis import eigenvalue_bands
from keras_linrec.analysis import gradient_norms
from keras_linrec.analysis import orthogonality_defect
from keras_linrec.analysis import plot_eigenvalue_bands
from keras_linrec.analysis import plot_phase_portrait
from keras_linrec.analysis import plot_vector_field
from keras_linrec.analysis import real_parts
from keras_linrec.analysis import spectrum_bounds
from keras_linrec.analysis import stability_certificate
from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import LipschitzRNNCell
from keras_linrec.layers import OrthogonalRNN

ROTATION = np.array([[0.0, -1.0], [1.0, 0.0]])


def normal(size, seed=0):
    return np.random.default_rng(seed).standard_normal((size, size))


def skewed(matrix, beta, gamma):
    symmetric, skew = matrix + matrix.T, matrix - matrix.T
    return (1 - beta) * symmetric + beta * skew - gamma * np.eye(len(matrix))


def built(layer, features=3, seed=0):
    keras.utils.set_random_seed(seed)
    layer.build((None, None, features))
    return layer


def stable_layer(**arguments):
    """A unit of which case (a) holds: gamma is large for A and small for W."""
    return built(LipschitzRNN(5, gamma=(3.0, 0.1), **arguments))


# Theorem 1.


def test_case_a_compares_the_decay_of_A_with_the_growth_of_W():
    linear, recurrent = -np.eye(3) + normal(3) - normal(3).T, 0.9 * np.eye(3)
    certificate = stability_certificate((linear, recurrent))
    assert certificate.smallest_symmetric_singular_value == pytest.approx(1)
    assert certificate.largest_recurrent_singular_value == pytest.approx(0.9)
    assert certificate.largest_symmetric_eigenvalue == pytest.approx(-1)
    assert certificate.case_a and certificate.stable
    assert not certificate.case_b
    steeper = stability_certificate((linear, recurrent), 1.2)
    assert not steeper.case_a and not steeper.stable


def test_an_A_that_grows_has_no_certificate():
    # Its smallest singular value is large nonetheless.
    certificate = stability_certificate((2 * np.eye(3), 0.1 * np.eye(3)))
    assert certificate.smallest_symmetric_singular_value == 2
    assert not certificate.stable


def test_case_b_needs_a_monotone_activation_and_agreeing_directions():
    linear = -0.1 * np.eye(2) + 0.05 * ROTATION
    recurrent = np.diag([-3.0, -2.0])
    certificate = stability_certificate((linear, recurrent))
    assert certificate.case_b and certificate.case_b_as_printed
    assert certificate.stable and not certificate.case_a
    assert certificate.largest_recurrent_eigenvalue == pytest.approx(-4)
    both = linear.T @ recurrent + recurrent.T @ linear
    assert certificate.smallest_product_eigenvalue == pytest.approx(
        np.linalg.eigvalsh(both)[0]
    )
    # For a symmetric W the corrected condition is the printed one.
    assert certificate.smallest_corrected_eigenvalue == pytest.approx(
        certificate.smallest_product_eigenvalue
    )
    pair = linear, recurrent
    assert not stability_certificate(pair, monotone=False).stable
    assert not stability_certificate((linear, -recurrent)).stable


def test_case_b_as_printed_certifies_a_unit_that_is_not_stable():
    linear = np.array([[-2.0, 0.0, -1.0], [1.0, -1.0, 9.0], [3.0, -9.0, -1.0]])
    recurrent = np.array(
        [[-5.0, -22.0, 2.0], [31.0, -16.0, 64.0], [14.0, -78.0, -28.0]]
    )
    certificate = stability_certificate((linear, recurrent))
    assert certificate.case_b_as_printed
    assert not certificate.stable
    # With a suitable bias, two units are saturated at the equilibrium and one
    # is not; the Jacobian there has an eigenvalue with positive real part.
    before = np.array([0.0, 20.0, -20.0])
    equilibrium = -np.linalg.solve(linear, np.tanh(before))
    bias = before - recurrent @ equilibrium
    inner = recurrent @ equilibrium + bias
    np.testing.assert_allclose(
        linear @ equilibrium + np.tanh(inner), 0, atol=1e-9
    )
    slopes = 1 - np.tanh(inner) ** 2
    assert real_parts(linear + slopes[:, None] * recurrent)[-1] > 0.3


def test_certified_units_have_stable_jacobians_at_any_slopes():
    generator = np.random.default_rng(0)
    certified = 0
    for _ in range(500):
        noise = generator.standard_normal((3, 3, 3))
        linear = noise[0] - noise[0].T - 0.7 * np.eye(3)
        recurrent = 0.3 * (noise[1] - noise[1].T) - 3 * noise[2] @ noise[2].T
        linear = linear + generator.uniform(0, 2) * recurrent
        certificate = stability_certificate((linear, recurrent))
        if not certificate.case_b:
            continue
        certified += 1
        slopes = generator.uniform(0, 1, (20, 3, 1)).round(
            generator.integers(2)
        )
        jacobians = linear + slopes * recurrent
        assert np.linalg.eigvals(jacobians).real.max() < 0
    assert certified > 20


def test_values_within_rounding_count_as_zero():
    skew = normal(4) - normal(4).T
    nearly = skew - 1e-9 * np.eye(4)
    assert not stability_certificate((nearly, 1e-12 * np.eye(4))).stable
    assert stability_certificate((skew - np.eye(4), 1e-12 * skew)).stable


def test_the_verdict_can_be_read():
    good = str(stability_certificate((-2 * np.eye(2), ROTATION)))
    assert good.startswith("Globally exponentially stable, by case (a), (c).")
    assert "sigma_min(A_sym) = 2" in good
    bad = str(stability_certificate((np.eye(2), ROTATION)))
    assert bad.startswith("No certificate")


def test_a_layer_has_the_certificate_of_its_matrices():
    layer = stable_layer(alpha=1.5)
    kernels = [
        keras.ops.convert_to_numpy(kernel)
        for kernel in (layer.linear_kernel, layer.recurrent_kernel)
    ]
    linear, recurrent = (
        skewed(kernel, 0.75, gamma) for kernel, gamma in zip(kernels, (3, 0.1))
    )
    of_layer = stability_certificate(layer)
    of_matrices = stability_certificate((1.5 * linear, recurrent))
    for name in (
        "largest_symmetric_eigenvalue",
        "smallest_corrected_eigenvalue",
    ):
        assert getattr(of_layer, name) == pytest.approx(
            getattr(of_matrices, name), rel=1e-4
        )
    assert of_layer.case_a


def test_a_layer_knows_its_activation():
    assert stability_certificate(
        stable_layer(activation="sigmoid")
    ).lipschitz_constant == pytest.approx(0.25)
    layer = stable_layer(activation="gelu")
    with pytest.raises(ValueError, match="lipschitz_constant"):
        stability_certificate(layer)
    assert stability_certificate(layer, 1.13, monotone=False).case_a


def test_without_a_linear_part_or_with_a_gate_there_is_no_certificate():
    plain = stability_certificate(built(AntisymmetricRNN(4, gamma=1.0)))
    assert not plain.stable
    assert plain.largest_real_part_of_recurrent_matrix == pytest.approx(-1)
    gated = stability_certificate(stable_layer(gated=True))
    assert not gated.stable and gated.step_factor is None
    assert "gated" in str(gated)


@pytest.mark.parametrize("solver", ["euler", "rk2"])
def test_the_step_factor_bounds_the_contraction_of_trajectories(solver):
    layer = stable_layer(step_size=0.1, solver=solver)
    certificate = stability_certificate(layer)
    assert certificate.step_stable
    inputs = np.ones((1, 3), "float32")
    states = [normal(5, seed)[:1].astype("float32") for seed in (1, 2)]
    after = [
        keras.ops.convert_to_numpy(
            layer.step(inputs, [keras.ops.convert_to_tensor(state)])[0]
        )
        for state in states
    ]
    closer = np.linalg.norm(after[0] - after[1])
    closer = closer / np.linalg.norm(states[0] - states[1])
    assert closer <= certificate.step_factor + 1e-6
    # A step too long for the same equation.
    assert not stability_certificate(stable_layer(step_size=1.0)).step_stable
    trained = stable_layer(step_size=0.1, trainable_step_size=True)
    assert stability_certificate(trained).step_size == pytest.approx(0.1)
    other = stability_certificate(stable_layer(solver="rk4"))
    assert other.step_stable is None


@pytest.mark.parametrize(
    "matrices",
    [
        np.eye(3),
        (np.eye(3),),
        (np.eye(3), np.eye(2)),
        (np.ones((2, 3)), np.eye(2)),
        # i and -i, which are not their own conjugates: eigenvalues -6 and 4.
        (np.array([[-1, 5j], [-5j, -1]]), 0.1 * np.eye(2)),
        (np.full((2, 2), np.nan), np.eye(2)),
        (np.zeros((0, 0)), np.zeros((0, 0))),
        keras.layers.Dense(2),
        LipschitzRNN(2),
    ],
)
def test_an_object_without_matrices_has_no_certificate(matrices):
    with pytest.raises(ValueError, match="Received"):
        stability_certificate(matrices)


# Proposition 1 and spectra.


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.75, 1.0])
def test_real_parts_lie_in_the_bounds(beta):
    for seed in range(20):
        matrix = normal(5, seed)
        low, high = spectrum_bounds(matrix, beta, gamma=0.3)
        parts = real_parts(skewed(matrix, beta, 0.3))
        assert low - 1e-9 <= parts[0] and parts[-1] <= high + 1e-9
        # For the symmetric part, the bounds are tight.
        symmetric = skewed(matrix, beta, 0.3)
        symmetric = np.linalg.eigvalsh(symmetric + symmetric.T) / 2
        np.testing.assert_allclose([low, high], symmetric[[0, -1]], atol=1e-9)


def test_bounds_as_printed_leave_eigenvalues_out():
    matrix = np.diag([-1.0, 2.0])
    parts = real_parts(skewed(matrix, 0.75, 0.0))
    printed = [0.25 * -1.0, 0.25 * 2.0]
    assert parts[0] < printed[0] and parts[-1] > printed[1]
    assert spectrum_bounds(matrix, 0.75, 0.0) == tuple(parts)


def test_bands_close_as_beta_grows():
    bands = eigenvalue_bands(6, [0.5, 0.8, 1.0], gamma=0.2, trials=4, seed=1)
    assert bands.largest.shape == bands.low.shape == (4, 3)
    width = bands.largest - bands.smallest
    assert (width[:, 0] > width[:, 1]).all()
    np.testing.assert_allclose(bands.largest[:, 2], -0.2, atol=1e-9)
    assert (bands.low <= bands.smallest + 1e-9).all()
    assert (bands.largest <= bands.high + 1e-9).all()
    again = eigenvalue_bands(6, [0.5, 0.8, 1.0], gamma=0.2, trials=4, seed=1)
    assert (again.largest == bands.largest).all()


def test_bounds_need_a_square_matrix_and_a_beta_in_range():
    with pytest.raises(ValueError, match="Received: matrix.shape"):
        spectrum_bounds(np.ones((2, 3)), 0.5, 0.0)
    with pytest.raises(ValueError, match="Received: beta=1.5"):
        spectrum_bounds(np.eye(2), 1.5, 0.0)
    with pytest.raises(ValueError, match="should be real"):
        spectrum_bounds(1j * np.eye(2), 0.5, 0.0)
    with pytest.raises(ValueError, match="should be finite"):
        spectrum_bounds(np.nan * np.eye(2), 0.5, 0.0)


def test_the_defect_measures_the_deviation_from_orthogonality():
    assert orthogonality_defect(ROTATION) == 0
    shear = np.array([[1.0, 0.5], [0.0, 1.0]])
    assert orthogonality_defect(shear) == pytest.approx(0.5)
    phase = np.exp(0.3j)
    assert orthogonality_defect(np.diag([phase, 1])) < 1e-12
    with pytest.raises(ValueError, match="Received"):
        orthogonality_defect(keras.layers.Dense(2))


# The monitor.


def monitored(model, **arguments):
    """The monitor's additions to the logs of an epoch."""
    monitor = StabilityMonitor(**arguments)
    monitor.set_model(model)
    monitor.on_train_begin()
    logs = {"loss": 1.0}
    monitor.on_epoch_end(0, logs)
    return logs


def test_weights_that_are_nan_are_logged():
    unit = LipschitzRNN(3, name="unit")
    model = keras.Sequential([keras.Input((None, 2)), unit])
    unit.recurrent_kernel.assign(np.full((3, 3), np.nan))
    logs = monitored(model)
    assert np.isnan(logs["unit/largest_recurrent_singular_value"])
    assert logs["unit/stable"] == 0


class Unit(keras.layers.Layer):
    """A layer that the package does not know, with a matrix of its own."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(2, 2))

    def recurrent_matrix(self):
        return keras.ops.convert_to_tensor(self.kernel)

    def call(self, inputs):
        return inputs @ self.kernel


def test_the_history_has_the_numbers_of_every_epoch(capsys):
    unit = Unit(name="unit")
    model = keras.Sequential([keras.Input((2,)), unit])
    model.compile("sgd", "mse", jit_compile=False)
    inputs, targets = np.ones((1, 2), "float32"), np.zeros((1, 2), "float32")
    history = model.fit(
        inputs, targets, epochs=2, verbose=0, callbacks=[StabilityMonitor()]
    ).history
    numbers = history["unit/largest_recurrent_singular_value"]
    assert len(numbers) == 2 and numbers[0] != numbers[1]
    certificate = stability_certificate(unit)
    assert numbers[1] == certificate.largest_recurrent_singular_value
    assert capsys.readouterr().out == ""


def test_units_are_found_in_models_wrappers_and_cells():
    inner = keras.Sequential(
        [
            keras.Input((3, 3)),
            keras.layers.Bidirectional(
                AntisymmetricRNN(2, return_sequences=True, name="both")
            ),
        ]
    )
    cell = keras.layers.RNN(LipschitzRNNCell(3, name="cell"))
    model = keras.Sequential([keras.Input((3, 3)), inner, cell])
    logs = monitored(model)
    names = {key.split("/")[0] for key in logs}
    assert names == {"loss", "forward_both", "backward_both", "cell"}
    assert logs["cell/largest_real_part_of_linear_matrix"] == pytest.approx(
        real_parts(cell.cell.linear_matrix())[-1], rel=1e-5
    )


def test_the_monitor_logs_the_defect_and_takes_unknown_activations():
    model = keras.Sequential(
        [
            keras.Input((3, 3)),
            LipschitzRNN(4, activation="gelu", return_sequences=True),
            OrthogonalRNN(4, reflections=1, field="complex", name="unit"),
        ]
    )
    logs = monitored(model, lipschitz_constant=1.13, monotone=False)
    assert 0 <= logs["unit/orthogonality_defect"] < 1e-5
    with pytest.raises(ValueError, match="lipschitz_constant"):
        monitored(model)


def test_units_of_the_same_name_have_keys_of_their_own():
    units = [
        keras.Sequential(
            [
                keras.Input((3, 3)),
                AntisymmetricRNN(3, return_sequences=True, name="unit"),
            ]
        )
        for _ in range(2)
    ]
    model = keras.Sequential([keras.Input((3, 3)), *units])
    assert {"unit/stable", "unit_1/stable"} <= set(monitored(model))


def test_the_monitor_needs_a_unit():
    model = keras.Sequential([keras.Input((3, 3)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="StabilityMonitor"):
        monitored(model)


# Plots.


def axes():
    figure = pytest.importorskip("matplotlib.figure")
    return figure.Figure().add_subplot()


def test_arrows_point_where_a_step_goes():
    layer = built(LipschitzRNN(2, gamma=(3.0, 0.1)), features=1)
    inputs = np.array([0.5], "float32")
    drawn = plot_vector_field(layer, inputs, points=3, axes=axes())
    (arrows,) = drawn.collections
    assert arrows.N == 9
    state = np.array([[arrows.X[2], arrows.Y[2]]], "float32")
    after, _ = layer.step(inputs[None], [keras.ops.convert_to_tensor(state)])
    change = (keras.ops.convert_to_numpy(after) - state)[0]
    np.testing.assert_allclose([arrows.U[2], arrows.V[2]], change, atol=1e-6)


def test_trajectories_of_a_stable_unit_meet():
    layer = built(LipschitzRNN(2, gamma=(3.0, 0.1), step_size=0.2), 1)
    drawn = plot_phase_portrait(layer, steps=30, axes=axes())
    lines = [line.get_xydata() for line in drawn.lines]
    trajectories = [line for line in lines if len(line) == 31]
    starts = {tuple(line[0]) for line in trajectories}
    assert len(trajectories) == len(starts) == 16
    ends = np.array([line[-1] for line in trajectories])
    assert np.ptp(ends, axis=0).max() < 1e-2
    one = plot_phase_portrait(layer, [[1.0, 0.0]], steps=3, axes=axes())
    np.testing.assert_allclose(one.lines[0].get_xydata()[0], [1.0, 0.0])


def test_bands_are_drawn_with_their_bounds():
    bands = eigenvalue_bands(4, [0.5, 1.0], trials=3, seed=0)
    drawn = plot_eigenvalue_bands(bands, axes=axes())
    assert len(drawn.lines) == 4 * 3
    np.testing.assert_allclose(
        drawn.lines[0].get_xydata(),
        np.stack([bands.betas, bands.largest[0]], axis=-1),
    )


@pytest.mark.parametrize(
    "layer", [keras.layers.Dense(2), LipschitzRNN(2), LipschitzRNN(3)]
)
def test_plots_need_two_states(layer):
    if getattr(layer, "units", None) == 3:
        built(layer)
    with pytest.raises(ValueError, match="Received: layer="):
        plot_vector_field(layer, axes=axes())


def test_plots_check_the_shapes_of_inputs():
    layer = built(LipschitzRNN(2), features=1)
    with pytest.raises(ValueError, match=r"Received: inputs.shape=\(2,\)"):
        plot_phase_portrait(layer, inputs=[1.0, 2.0], axes=axes())
    with pytest.raises(ValueError, match="Received: starts.shape"):
        plot_phase_portrait(layer, starts=[1.0, 2.0], axes=axes())
    with pytest.raises(ValueError, match="Received: limits"):
        plot_vector_field(layer, limits=(1, 0), axes=axes())


@pytest.mark.parametrize(
    "layer",
    [
        LSSL(3, state_size=4, return_sequences=False),
        LRU(3, state_size=5, return_sequences=False),
        keras.layers.RNN([keras.layers.GRUCell(2), keras.layers.GRUCell(3)]),
    ],
    ids=["lssl", "lru", "stacked"],
)
def test_gradients_have_the_norms_of_differences(layer):
    """States need not have the shape of the output."""
    inputs = np.random.default_rng(0).standard_normal((2, 5, 3))
    inputs = inputs.astype("float32")
    layer.build(inputs.shape)
    generator = np.random.default_rng(0)
    structure = layer.get_initial_state(2)
    states = [
        generator.standard_normal(state.shape).astype("float32")
        for state in keras.tree.flatten(structure)
    ]
    direction = generator.standard_normal((2, 3)).astype("float32")

    def along(index, move):
        moved = list(states)
        moved[index] = moved[index] + move.astype("float32")
        outputs = layer(
            inputs,
            initial_state=keras.tree.pack_sequence_as(structure, moved),
        )
        return np.sum(keras.ops.convert_to_numpy(outputs) * direction, axis=1)

    squares = 0.0
    for index, state in enumerate(states):
        for place in np.ndindex(state.shape[1:]):
            move = np.zeros(state.shape)
            move[(slice(None), *place)] = 0.01
            slope = along(index, move) - along(index, -move)
            squares = squares + (slope / 0.02) ** 2
    expected = np.sqrt(squares) / np.linalg.norm(direction, axis=1)
    (norms,) = gradient_norms(layer, inputs, [5])
    assert norms == pytest.approx(expected, rel=1e-2)


def test_a_layer_that_is_not_built_has_gradients_and_stays_whole():
    layer = OrthogonalRNN(4, reflections=2)
    inputs = np.random.default_rng(0).standard_normal((1, 5, 3), "float32")
    norms = gradient_norms(layer, inputs, [2, 5])
    assert norms == pytest.approx(gradient_norms(layer, inputs, [2, 5]))
    assert np.isfinite(keras.ops.convert_to_numpy(layer(inputs))).all()


def test_gradients_of_an_orthogonal_unit_keep_their_length():
    layer = OrthogonalRNN(8, reflections=5, activation="oplu")
    fading = LipschitzRNN(8, gamma=1.0, step_size=0.1)
    inputs = np.random.default_rng(0).standard_normal((2, 50, 3))
    for unit in (layer, fading):
        unit.build(inputs.shape)
    norms = gradient_norms(layer, inputs, [3, 50])
    assert norms.shape == (2, 2)
    assert np.abs(norms - 1).max() < 1e-4
    first, last = gradient_norms(fading, inputs, [3, 50])
    assert (last < 0.1 * first).all()
    with pytest.raises(ValueError, match=r"from 1 to 50, .* steps=\[51\]"):
        gradient_norms(layer, inputs, [51])
    whole = OrthogonalRNN(4, return_sequences=True)
    with pytest.raises(ValueError, match="Received: return_sequences=True"):
        gradient_norms(whole, inputs, [3])
