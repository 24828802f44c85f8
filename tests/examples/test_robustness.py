"""The Hessian of a classifier's loss, attacks and noise."""

import keras
import numpy as np
import pytest

from keras_linrec.analysis import Hessian
from keras_linrec.analysis import deepfool
from keras_linrec.analysis import hessian
from keras_linrec.analysis import pgd
from keras_linrec.analysis import salt_and_pepper_response
from keras_linrec.analysis import white_noise_response
from keras_linrec.layers import LipschitzRNN

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
PROBABILITIES = keras.losses.SparseCategoricalCrossentropy()


def data(*shape, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal(shape).astype("float32")
    return inputs, generator.integers(classes, size=len(inputs))


def dense_model(activation=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh"),
            keras.layers.Dense(3, activation),
        ]
    )


def linear_model(kernel, activation=None):
    kernel = np.asarray(kernel, "float32")
    model = keras.Sequential(
        [
            keras.Input((len(kernel),)),
            keras.layers.Dense(kernel.shape[1], activation, use_bias=False),
        ]
    )
    model.set_weights([kernel])
    return model


def recurrent_model(unit):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((4, 2)), unit, keras.layers.Dense(3)],
    )


def weights_of(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def set_weights(model, vector):
    shapes = [weight.shape for weight in model.weights]
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
    parts = np.split(vector, ends)
    model.set_weights([p.reshape(s) for p, s in zip(parts, shapes)])


def mean_loss(loss, labels, model, inputs):
    return float(keras.ops.convert_to_numpy(loss(labels, model(inputs))))


def differences(model, matrix, directions, step=1e-2):
    """H v for several v, by differences of the gradient."""
    start = weights_of(model)
    columns = []
    for direction in directions:
        slopes = []
        for sign in (1, -1):
            set_weights(model, start + sign * step * direction)
            slopes.append(matrix.gradient())
        columns.append((slopes[0] - slopes[1]) / (2 * step))
    set_weights(model, start)
    return np.array(columns)


# The Hessian.


@pytest.fixture(scope="module")
def model():
    return dense_model()


@pytest.fixture(scope="module")
def matrix(model):
    return Hessian(model, *data(7, 3), LOGITS)


@pytest.fixture(scope="module")
def columns(matrix):
    return np.array([matrix.product(row) for row in np.eye(matrix.size)])


def test_products_are_differences_of_the_gradient(model, matrix, columns):
    expected = differences(model, matrix, np.eye(matrix.size))
    np.testing.assert_allclose(columns, expected, atol=3e-4)
    np.testing.assert_allclose(columns, columns.T, atol=1e-6)


def test_the_gradient_is_differences_of_the_loss(model, matrix):
    inputs, labels = data(7, 3)
    gradient = matrix.gradient()
    start, step = weights_of(model), 1e-2
    for index in (0, 13, 30):
        losses = []
        for sign in (1, -1):
            set_weights(model, start + sign * step * np.eye(31)[index])
            losses.append(mean_loss(LOGITS, labels, model, inputs))
        set_weights(model, start)
        slope = (losses[0] - losses[1]) / (2 * step)
        assert gradient[index] == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize(
    "unit", [keras.layers.LSTM, LipschitzRNN], ids=["lstm", "lipschitz"]
)
def test_products_through_a_recurrence_are_differences_too(unit):
    model = recurrent_model(unit(3))
    matrix = Hessian(model, *data(6, 4, 2), LOGITS)
    generator = np.random.default_rng(1)
    directions = generator.standard_normal((2, matrix.size))
    products = [matrix.product(direction) for direction in directions]
    np.testing.assert_allclose(
        products, differences(model, matrix, directions), atol=5e-4
    )


def test_batches_are_summed(model, columns):
    parts = Hessian(model, *data(7, 3), LOGITS, batch_size=4)
    vector = np.random.default_rng(0).standard_normal(parts.size)
    np.testing.assert_allclose(
        parts.product(vector), columns @ vector, atol=1e-5
    )


def test_any_way_to_name_the_loss_gives_the_same_gradient(matrix):
    inputs, labels = data(7, 3)
    expected = matrix.gradient()
    compiled = dense_model("softmax")
    compiled.compile(loss="sparse_categorical_crossentropy")
    summed = keras.losses.CategoricalCrossentropy(reduction="sum")
    of_output = {"outputs": "sparse_categorical_crossentropy"}
    config = keras.losses.serialize(
        keras.losses.SparseCategoricalCrossentropy()
    )
    for targets, loss in (
        (labels, None),
        (np.eye(3)[labels], summed),
        (labels, of_output),
        (labels, config),
    ):
        gradient = Hessian(compiled, inputs, targets, loss).gradient()
        np.testing.assert_allclose(gradient, expected, atol=2e-6)


def test_frozen_weights_are_left_out(matrix):
    model = dense_model()
    model.layers[0].trainable = False
    inner = Hessian(model, *data(7, 3), LOGITS)
    assert inner.size == 15
    expected = matrix.gradient()[-15:]
    np.testing.assert_allclose(inner.gradient(), expected, atol=1e-6)


def test_both_ends_and_the_trace_are_those_of_the_matrix(matrix, columns):
    eigenvalues = np.linalg.eigvalsh((columns + columns.T) / 2)
    summary = matrix.summary(samples=200, seed=0)
    ends = summary.eigenvalues
    assert ends.largest == pytest.approx(eigenvalues[-1], rel=1e-3)
    assert ends.smallest == pytest.approx(eigenvalues[0], abs=2e-3)
    assert ends.smallest < 0
    assert ends.condition_number == ends.largest / ends.smallest
    trace = summary.trace
    assert abs(trace.value - np.trace(columns)) < 4 * trace.standard_error
    # With random signs, Hutchinson's variance is that of off-diagonal entries.
    beside = columns - np.diag(np.diag(columns))
    assert trace.standard_error == pytest.approx(
        np.sqrt(2 / 200) * np.linalg.norm(beside), rel=0.3
    )
    assert "condition number" in str(summary)


def test_lanczos_finds_both_ends_of_a_known_spectrum():
    generator = np.random.default_rng(0)
    basis, _ = np.linalg.qr(generator.standard_normal((60, 60)))
    spectrum = np.concatenate([[-3.0, 10.0, 10.0], np.linspace(0, 1, 57)])
    matrix = basis * spectrum @ basis.T
    calls = []

    def product(vector):
        calls.append(vector)
        return matrix @ vector

    ends = hessian.lanczos(product, generator.standard_normal(60), 60, 1e-6)
    assert len(calls) < 30
    assert ends.largest == pytest.approx(10, abs=1e-9)
    assert ends.smallest == pytest.approx(-3, abs=1e-9)
    assert ends.condition_number == pytest.approx(-10 / 3)
    assert max(ends.smallest_residual, ends.largest_residual) < 1e-5
    few = hessian.lanczos(product, generator.standard_normal(60), 3, 1e-6)
    assert -3 < few.smallest < few.largest < 10
    assert few.largest_residual > 1e-6


@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_lanczos_stops_where_there_is_one_eigenvalue(scale):
    ends = hessian.lanczos(lambda vector: scale * vector, np.ones(4), 4, 1e-6)
    assert ends.smallest == ends.largest == pytest.approx(scale)
    singular = np.isinf(ends.condition_number)
    assert singular == (scale == 0)


# Attacks.


def test_pgd_raises_the_loss_within_its_radius():
    model, (inputs, labels) = dense_model("softmax"), data(8, 3)
    model.compile(loss=PROBABILITIES)
    attacked = pgd(model, inputs, labels, 0.05, 0.02, batch_size=4)
    clean, moved = (
        mean_loss(PROBABILITIES, labels, model, values)
        for values in (inputs, attacked.inputs)
    )
    assert moved > clean + 0.01
    np.testing.assert_allclose(attacked.linf_norms, 0.05, atol=1e-6)
    np.testing.assert_allclose(
        attacked.l2_norms,
        np.linalg.norm(attacked.inputs - inputs, axis=-1),
        rtol=1e-5,
    )


def test_pgd_steps_along_the_sign_of_the_gradient():
    model = linear_model([[1.0, -1.0], [-2.0, 2.0], [0.5, -0.5]])
    inputs, labels = np.zeros((1, 3)), [0]
    attacked = pgd(model, inputs, labels, loss=LOGITS)
    np.testing.assert_allclose(
        attacked.inputs[0], [-0.07, 0.07, -0.07], atol=1e-6
    )
    clipped = pgd(model, inputs, labels, clip=(-0.05, 0.02), loss=LOGITS)
    np.testing.assert_allclose(
        clipped.inputs[0], [-0.05, 0.02, -0.05], atol=1e-6
    )


def test_pgd_goes_through_a_recurrence():
    model = recurrent_model(LipschitzRNN(3))
    inputs, labels = data(4, 4, 2)
    attacked = pgd(model, inputs, labels, loss=LOGITS, iterations=2)
    assert attacked.inputs.shape == inputs.shape
    assert (attacked.linf_norms > 0.019).all()


BOUNDARIES = np.array([[3.0, 0.0, -1.0], [0.0, 2.0, -1.0]])


@pytest.mark.parametrize(
    "norm, activation", [(2, None), (np.inf, None), (2, "softmax")]
)
def test_deepfool_goes_just_beyond_the_nearest_boundary(norm, activation):
    model = linear_model(BOUNDARIES, activation)
    loss = PROBABILITIES if activation else LOGITS
    inputs = np.array([[1.0, 0.4], [-0.1, 0.6], [-1.0, -1.0]])
    scores = inputs @ BOUNDARIES
    clean = scores.argmax(axis=-1)
    attacked = deepfool(model, inputs, clean, norm, loss=loss, batch_size=2)
    assert attacked.clean_accuracy == 1 and attacked.accuracy == 0
    dual = 2 if norm == 2 else 1
    for row, best in enumerate(clean):
        distance = min(
            (scores[row, best] - scores[row, other])
            / np.linalg.norm(BOUNDARIES[:, other] - BOUNDARIES[:, best], dual)
            for other in range(3)
            if other != best
        )
        norms = attacked.l2_norms if norm == 2 else attacked.linf_norms
        assert distance < norms[row] < 1.03 * distance + 1e-3


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_output_stands_for_two_classes(activation):
    model = linear_model([[3.0], [4.0]], activation)
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    inputs, labels = np.array([[0.3, 0.4], [-0.6, 0.2]]), [1, 0]
    attacked = deepfool(model, inputs, labels, loss=loss)
    assert attacked.clean_accuracy == 1 and attacked.accuracy == 0
    np.testing.assert_allclose(attacked.l2_norms, [0.5, 0.2], rtol=0.03)
    attacked = pgd(model, inputs, labels, step_size=0.03, loss=loss)
    assert attacked.accuracy == 0.5
    curve = white_noise_response(model, inputs, labels, [0.0], loss=loss)
    assert curve.accuracies == [1.0]


@pytest.mark.parametrize("norm", [2, np.inf])
def test_deepfool_keeps_to_its_radius_and_range(norm):
    model = linear_model(BOUNDARIES)
    inputs = np.array([[1.0, 0.4]])
    attacked = deepfool(model, inputs, [0], norm, radius=0.1, loss=LOGITS)
    norms = attacked.l2_norms if norm == 2 else attacked.linf_norms
    assert norms[0] == pytest.approx(0.1, rel=1e-4)
    assert attacked.accuracy == 1
    clipped = deepfool(model, inputs, [0], norm, clip=(0.3, 1), loss=LOGITS)
    assert clipped.inputs.min() >= 0.3 - 1e-6


def test_deepfool_fools_a_nonlinear_model():
    model, (inputs, _) = dense_model(), data(9, 3)
    labels = np.asarray(model.predict(inputs, verbose=0)).argmax(axis=-1)
    attacked = deepfool(model, inputs, np.eye(3)[labels], loss=LOGITS)
    assert attacked.clean_accuracy == 1
    assert attacked.accuracy == 0


def test_deepfool_leaves_constant_scores_alone():
    model = linear_model(np.zeros((2, 3)))
    attacked = deepfool(model, np.ones((2, 2)), [0, 1], loss=LOGITS)
    assert (attacked.inputs == 1).all()


# Noise.


def test_noise_costs_accuracy():
    model = linear_model(np.eye(2))
    model.compile(loss=LOGITS)
    inputs, labels = np.tile(np.eye(2), (100, 1)), np.tile([0, 1], 100)
    white = white_noise_response(model, inputs, labels, [0, 0.5, 50], seed=0)
    assert white.accuracies[0] == 1
    # P(noise of variance 2 * 0.25 stays below 1), and the chance of guessing.
    np.testing.assert_allclose(white.accuracies[1:], [0.92, 0.5], atol=0.08)
    salted = salt_and_pepper_response(
        model, inputs, labels, [0, 0.5, 1], seed=0
    )
    assert salted.accuracies[0] == 1
    assert 0.65 < salted.accuracies[1] < 0.95
    again = salt_and_pepper_response(model, inputs, labels, [0.5], seed=0)
    assert again.accuracies == salted.accuracies[1]


def test_grains_have_the_given_values(monkeypatch):
    seen = []
    model = linear_model(np.eye(2))
    predict = model.predict

    def record(inputs, **arguments):
        seen.append(inputs)
        return predict(inputs, **arguments)

    monkeypatch.setattr(model, "predict", record)
    inputs = np.full((100, 2), 0.5)
    salt_and_pepper_response(
        model, inputs, np.zeros(100), [0.3, 1.0], 0, 1, seed=0, loss=LOGITS
    )
    assert 0.2 < np.mean(seen[0] != 0.5) < 0.4
    assert set(np.unique(seen[1])) == {0, 1}


# Errors.


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"loss": None}, "`loss` should be given"),
        ({"labels": [0]}, r"len\(labels\)=1"),
        ({"radius": -1.0}, "radius=-1.0"),
        ({"iterations": 0}, "iterations=0"),
        ({"clip": (1, 0)}, "clip="),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_arguments_of_an_attack_are_named(arguments, message):
    inputs, labels = data(2, 3)
    arguments = {"labels": labels, "loss": LOGITS, **arguments}
    for attack in (pgd, deepfool):
        with pytest.raises(ValueError, match=message):
            attack(dense_model(), inputs, **arguments)


def test_other_bad_arguments_are_named():
    model, (inputs, labels) = dense_model(), data(2, 3)
    with pytest.raises(ValueError, match="max_classes=1"):
        deepfool(model, inputs, labels, max_classes=1, loss=LOGITS)
    frozen = dense_model()
    frozen.trainable = False
    with pytest.raises(ValueError, match="should have trainable weights"):
        Hessian(frozen, inputs, labels, LOGITS)
    with pytest.raises(ValueError, match="norm=1"):
        deepfool(model, inputs, labels, norm=1, loss=LOGITS)
    with pytest.raises(ValueError, match="levels="):
        white_noise_response(model, inputs, labels, [-1.0], loss=LOGITS)
    with pytest.raises(ValueError, match="levels="):
        salt_and_pepper_response(model, inputs, labels, [1.5], loss=LOGITS)
    with pytest.raises(ValueError, match="vector.shape"):
        Hessian(model, inputs, labels, LOGITS).product(np.ones(3))
    with pytest.raises(ValueError, match="`model` should be built"):
        Hessian(
            keras.Sequential([keras.layers.Dense(2)]), inputs, labels, LOGITS
        )


def test_a_model_of_sequences_is_not_a_classifier():
    model = keras.Sequential([keras.Input((4, 2)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="outputs.shape"):
        Hessian(model, *data(2, 4, 2), LOGITS).gradient()


def test_a_model_that_is_not_finite_has_no_hessian():
    broken = dense_model()
    set_weights(broken, np.nan * weights_of(broken))
    with pytest.raises(ValueError, match="The Hessian is not finite"):
        Hessian(broken, *data(7, 3), LOGITS).trace(samples=1)
