"""Optimizers with a learning rate of its own for chosen weights."""

import re
import warnings

import keras
import numpy as np
import pytest

from keras_linrec import layers
from keras_linrec.optimizers import ParameterGroups

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

KINDS = {
    "adam": lambda rate, **given: keras.optimizers.Adam(rate, **given),
    "adamw": lambda rate, **given: keras.optimizers.AdamW(
        rate, weight_decay=0.1, **given
    ),
    "momentum": lambda rate, **given: keras.optimizers.SGD(
        rate, momentum=0.9, weight_decay=0.1, **given
    ),
}


def small_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6, 2)),
            layers.RotRNN(3, state_size=4, num_heads=2, name="rotrnn"),
            keras.layers.Dense(1, name="head"),
        ],
        name="model",
    )


def data():
    generator = np.random.default_rng(0)
    sequences = generator.normal(size=(8, 6, 2)).astype("float32")
    return sequences, sequences[..., :1].copy()


def trained(optimizer, epochs=3):
    """The weights of a small model after some steps, by path."""
    model = small_model()
    model.compile(optimizer, "mse")
    model.fit(*data(), batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return model, weights_of(model)


def weights_of(model):
    return {w.path: np.array(w) for w in model.trainable_weights}


def is_in_group(path):
    return path.endswith(("theta", "gamma_log"))


GROUPS = {"theta|gamma_log": 0.1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_multiple_of_one_changes_nothing_but_the_decay(kind):
    undecayed = KINDS[kind](0.01, clipnorm=0.5)
    if undecayed.weight_decay is not None:
        undecayed.weight_decay = 0.0
    _, expected = trained(undecayed)
    optimizer = KINDS[kind](0.01, clipnorm=0.5)
    _, grouped = trained(ParameterGroups(optimizer, {"rotrnn|head": 1.0}))
    for path, value in expected.items():
        np.testing.assert_array_equal(grouped[path], value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_moves_as_under_an_optimizer_of_its_rate(kind):
    """In the first step, when the gradients are the same."""

    def after_one_step(optimizer):
        model = small_model()
        model.compile(optimizer, "mse")
        model.train_on_batch(*data())
        return weights_of(model)

    grouped = after_one_step(ParameterGroups(KINDS[kind](0.01), GROUPS))
    slow = KINDS[kind](0.001)
    slow.exclude_from_weight_decay(var_names=["theta", "gamma_log"])
    slow = after_one_step(slow)
    fast = after_one_step(KINDS[kind](0.01))
    start = weights_of(small_model())
    for path, value in grouped.items():
        expected = slow if is_in_group(path) else fast
        np.testing.assert_allclose(value, expected[path], atol=1e-7)
        assert np.abs(value - start[path]).max() > 0, path


def test_weights_at_multiple_zero_stay():
    _, end = trained(ParameterGroups(KINDS["adamw"](0.01), {"theta": 0.0}))
    start = weights_of(small_model())
    moved = {path for path in end if (end[path] != start[path]).any()}
    assert moved == {path for path in start if not path.endswith("theta")}


@pytest.mark.parametrize("name", ["Ftrl", "Lion", "Adam"])
def test_weights_at_multiple_zero_stay_under_any_optimizer(name):
    optimizer = getattr(keras.optimizers, name)(0.01, use_ema=True)
    _, end = trained(ParameterGroups(optimizer, {"theta": 0.0}))
    for path, value in weights_of(small_model()).items():
        if path.endswith("theta"):
            np.testing.assert_array_equal(end[path], value)
        assert np.isfinite(end[path]).all()


def test_the_first_expression_that_fits_is_the_group():
    optimizer = ParameterGroups(
        KINDS["adam"](0.01), {"theta": 0.0, "rotrnn": 1.0}
    )
    _, end = trained(optimizer)
    start = weights_of(small_model())
    for path in end:
        assert (end[path] == start[path]).all() == path.endswith("theta")


def test_the_learning_rate_is_that_of_the_others_and_moves_all():
    optimizer = ParameterGroups(KINDS["adam"](0.01), GROUPS)
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    optimizer.learning_rate = 0.0
    _, end = trained(optimizer)
    for path, value in weights_of(small_model()).items():
        np.testing.assert_array_equal(end[path], value)


def test_a_rate_that_is_assigned_moves_all():
    optimizer = ParameterGroups(keras.optimizers.Adam(0.01), GROUPS)
    optimizer.build(small_model().trainable_weights)
    optimizer.learning_rate.assign(0.003)
    (group,) = optimizer.group_optimizers
    assert float(group.learning_rate) == pytest.approx(0.0003)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras cannot load."""

    def __call__(self, step):
        return 0.01 * 0.5 ** keras.ops.cast(step, "float32")


@pytest.mark.parametrize(
    "rate", [Halving(), lambda: 0.01], ids=["schedule", "function"]
)
def test_rates_that_cannot_be_saved_apply_to_every_group(rate):
    optimizer = ParameterGroups(keras.optimizers.SGD(rate), GROUPS)
    _, end = trained(optimizer, epochs=1)
    (group,) = optimizer.group_optimizers
    ratio = float(group.learning_rate) / float(optimizer.learning_rate)
    assert ratio == pytest.approx(0.1)
    start = weights_of(small_model())
    of_group = [path for path in end if is_in_group(path)]
    assert of_group
    assert all((end[path] != start[path]).any() for path in of_group)


def test_a_schedule_applies_to_every_group():
    def decay(rate):
        return keras.optimizers.schedules.PolynomialDecay(rate, 4, 0.0)

    scheduled = ParameterGroups(KINDS["adam"](decay(0.01)), GROUPS)
    model, end = trained(scheduled, epochs=2)
    # After four steps the rate is zero.
    model.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0)
    for path, value in weights_of(model).items():
        np.testing.assert_array_equal(end[path], value)
        assert (value != weights_of(small_model())[path]).any()


def test_the_clipped_norm_is_that_of_all_groups():
    """Steps of plain gradient descent are as long as the clipped gradient."""
    optimizer = ParameterGroups(
        keras.optimizers.SGD(1.0, global_clipnorm=0.01), {"theta|head": 1.0}
    )
    model = small_model()
    model.compile(optimizer, "mse")
    start = weights_of(model)
    model.train_on_batch(*data())
    moves = [np.sum((w - start[p]) ** 2) for p, w in weights_of(model).items()]
    assert np.sqrt(sum(moves)) == pytest.approx(0.01, rel=1e-4)


def test_the_given_optimizer_stays_as_it_is():
    given = keras.optimizers.SGD(0.1, global_clipnorm=0.1)
    first = ParameterGroups(given, GROUPS)
    second = ParameterGroups(given, {"head": 0.5})
    assert given.global_clipnorm == second.global_clipnorm == 0.1
    # But each needs one of its own.
    first.build(small_model().trainable_weights)
    with pytest.raises(ValueError, match="that is built"):
        second.build(small_model().trainable_weights)


def test_averages_replace_the_weights_of_every_group():
    given = {"use_ema": True, "ema_momentum": 0.5}
    _, plain = trained(KINDS["adam"](0.01, **given))
    _, grouped = trained(
        ParameterGroups(KINDS["adam"](0.01, **given), {"theta": 1.0})
    )
    for path, value in plain.items():
        np.testing.assert_array_equal(grouped[path], value)


def test_a_saved_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    def optimizer():
        return ParameterGroups(
            KINDS["adamw"](0.01, global_clipnorm=1.0), GROUPS
        )

    _, expected = trained(optimizer(), epochs=4)
    model, _ = trained(optimizer(), epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.groups == GROUPS
    assert loaded.optimizer.global_clipnorm == 1.0
    loaded.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0)
    for value, weight in zip(expected.values(), loaded.trainable_weights):
        np.testing.assert_allclose(np.array(weight), value, atol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "Lamb"])
def test_the_groups_of_a_sequential_outlast_its_file(name, tmp_path):
    """Whose paths begin with the model's name before saving, and not after."""
    groups = {"model/rotrnn/theta": 0.0}
    optimizer = getattr(keras.optimizers, name)(0.01)
    model, _ = trained(ParameterGroups(optimizer, groups))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for both in (model, loaded):
        both.fit(*data(), batch_size=4, shuffle=False, verbose=0)
    for weight, expected in zip(loaded.weights, model.weights):
        np.testing.assert_allclose(weight, expected, atol=1e-6)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(loaded.optimizer)
    )
    again.build(loaded.trainable_weights)
    # Of another model, the paths that it has.
    with pytest.raises(ValueError, match="Received: 'model/rotrnn/theta"):
        ParameterGroups(keras.optimizers.Adam(), groups).build(
            loaded.trainable_weights
        )


def test_a_scaled_loss_is_unscaled_once():
    def moved(optimizer):
        model = small_model()
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
        model.train_on_batch(*data())
        return weights_of(model)

    def given():
        return keras.optimizers.SGD(0.1, loss_scale_factor=1024.0)

    expected = moved(given())
    grouped = moved(ParameterGroups(given(), {"theta": 1.0}))
    for path, value in expected.items():
        np.testing.assert_allclose(grouped[path], value, atol=1e-6)
    fixed = ParameterGroups(given(), {"theta": 1.0})
    assert fixed.loss_scale_factor == 1024.0
    assert [o.loss_scale_factor for o in fixed.group_optimizers] == [1024.0]


def test_averages_are_swapped_in():
    results = []
    for groups in (None, {"theta": 1.0}):
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        if groups:
            optimizer = ParameterGroups(optimizer, groups)
        model = small_model()
        model.compile(optimizer, "mse")
        model.fit(
            *data(),
            batch_size=4,
            epochs=2,
            shuffle=False,
            callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
            verbose=0,
        )
        results.append(weights_of(model))
    for path, value in results[0].items():
        np.testing.assert_allclose(results[1][path], value, atol=1e-6)


def test_updates_are_counted_as_in_keras():
    optimizer = ParameterGroups(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), GROUPS
    )
    trained(optimizer, epochs=3)
    assert int(optimizer.iterations) == 3


def test_all_weights_of_an_optimizer_are_set():
    def built():
        optimizer = ParameterGroups(keras.optimizers.Adam(0.01), GROUPS)
        optimizer.build(small_model().trainable_weights)
        return optimizer

    model, _ = trained(ParameterGroups(keras.optimizers.Adam(0.01), GROUPS))
    weights = [np.array(v) for v in model.optimizer.variables]
    optimizer = built()
    optimizer.set_weights(weights)
    for variable, expected in zip(optimizer.variables, weights):
        np.testing.assert_array_equal(variable, expected)
    with pytest.raises(ValueError, match="`weights` should have the shapes"):
        optimizer.set_weights(weights[1:])
    with pytest.raises(ValueError, match="built before `set_weights`"):
        ParameterGroups(keras.optimizers.Adam(), GROUPS).set_weights(weights)


def test_gradients_that_do_not_fit_are_refused_as_by_keras():
    weights = small_model().trainable_weights
    grads = [keras.ops.zeros(w.shape) for w in weights]
    optimizer = ParameterGroups(keras.optimizers.Adam(), GROUPS)
    optimizer.build(weights)
    with pytest.raises(ValueError, match="Received: 2 gradients for"):
        optimizer.apply(grads[:2])
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply([None] * len(weights))
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply(grads, small_model().trainable_weights)
    with pytest.warns(UserWarning, match="Gradients do not exist .*theta"):
        optimizer.apply(
            [None if "theta" in w.path else g for w, g in zip(weights, grads)]
        )


def variables(*names):
    made = [keras.Variable(np.ones(2, "float32"), name=n) for n in names]
    return made, [keras.ops.full((2,), 0.3) for _ in made]


def decaying(rate, **arguments):
    schedule = keras.optimizers.schedules.ExponentialDecay(rate, 1, 0.5)
    return keras.optimizers.Adam(schedule, **arguments)


@pytest.mark.parametrize("missing", [0, 1], ids=["of the rest", "of a group"])
@pytest.mark.parametrize(
    "given",
    [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True}],
    ids=["", "accumulated", "averaged"],
)
def test_missing_gradients_change_nothing_else(missing, given):
    results = []
    for grouped in (False, True):
        weights, grads = variables("kernel", "theta")
        optimizer = decaying(0.1, **given)
        if grouped:
            optimizer = ParameterGroups(optimizer, {"theta": 1.0})
        optimizer.build(weights)
        partial = list(grads)
        partial[missing] = None
        for update in (grads, partial, partial, partial, grads, grads):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.apply(update, weights)
        results.append([np.array(w) for w in weights])
        results[-1].append(float(optimizer.learning_rate))
        # With `use_ema`, weights become their averages.
        optimizer.finalize_variable_values(weights)
        results[-1] += [np.array(w) for w in weights]
    for got, expected in zip(*results):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_an_average_begins_without_a_gradient_too():
    weights, grads = variables("kernel", "theta")
    optimizer = ParameterGroups(
        keras.optimizers.SGD(0.1, use_ema=True), {"theta": 1.0}
    )
    optimizer.build(weights)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([grads[0], None], weights)
    optimizer.finalize_variable_values(weights)
    np.testing.assert_array_equal(weights[1], np.ones(2))


def test_gradients_that_are_values_are_not_clipped():
    weights, grads = variables("kernel", "theta", "scale")
    weights[2].overwrite_with_gradient = True
    grads[2] = keras.ops.full((2,), 448.0)
    optimizer = ParameterGroups(
        keras.optimizers.SGD(1.0, global_clipnorm=1.0), {"theta": 1.0}
    )
    optimizer.build(weights)
    optimizer.apply(grads, weights)
    for weight, expected in zip(weights, (0.7, 0.7, 448.0)):
        np.testing.assert_allclose(weight, np.full(2, expected), rtol=1e-6)


def test_at_multiple_zero_no_gradient_counts():
    weights, grads = variables("kernel", "theta")
    grads[1] = keras.ops.full((2,), np.inf)
    optimizer = ParameterGroups(keras.optimizers.Adam(0.1), {"theta": 0.0})
    optimizer.build(weights)
    optimizer.apply(grads, weights)
    np.testing.assert_array_equal(weights[1], np.ones(2))
    assert (np.array(weights[0]) < 1).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="groups of its own"):
        grouped = ParameterGroups(keras.optimizers.Adam(), GROUPS)
        ParameterGroups(grouped, GROUPS)
    with pytest.raises(ValueError, match="`optimizer` should be a Keras"):
        ParameterGroups("adam", GROUPS)
    with pytest.raises(ValueError, match="that is built"):
        built = keras.optimizers.Adam()
        built.build([])
        ParameterGroups(built, GROUPS)
    for groups in ({}, ["theta"], None):
        with pytest.raises(ValueError, match="`groups` should be a dictionary"):
            ParameterGroups(keras.optimizers.Adam(), groups)
    with pytest.raises(ValueError, match="should be strings"):
        ParameterGroups(keras.optimizers.Adam(), {1: 0.5})
    for multiple in (-1, "a", float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"groups\['theta'\]"):
            ParameterGroups(keras.optimizers.Adam(), {"theta": multiple})
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    with pytest.raises(ValueError, match="to the `LossScaleOptimizer`"):
        ParameterGroups(scaled, GROUPS)
    if hasattr(keras.optimizers, "MultiOptimizer"):
        several = keras.optimizers.MultiOptimizer(
            lambda variable: keras.optimizers.Adam()
        )
        with pytest.raises(ValueError, match="to the `MultiOptimizer`"):
            ParameterGroups(several, GROUPS)
    with pytest.raises(ValueError, match=r"regular expressions.*'\('"):
        ParameterGroups(keras.optimizers.Adam(), {"(": 0.5})
    both = {"global_clipnorm": 1.0, "gradient_accumulation_steps": 2}
    with pytest.raises(ValueError, match="not both"):
        ParameterGroups(keras.optimizers.Adam(**both), GROUPS)


EIGENVALUES = ("standard", "unit", "log_polar_hinge")
FORMS = {
    "LSSL": [layers.LSSL(state_size=4)],
    "RotRNN": [layers.RotRNN(4, state_size=4)],
    "LRU": [layers.LRU(4, state_size=4)],
    "S5": [layers.S5(4, state_size=4)],
    "S4D": [layers.S4D(4, state_size=4)],
    "LinOSS": [layers.LinOSS(4, state_size=4, damping=True)],
    "LinearDynamicalSystem": [
        layers.LinearDynamicalSystem(4, eigenvalues=kind)
        for kind in EIGENVALUES
    ],
    "LDStack": [
        *(layers.LDStack(4, eigenvalues=kind) for kind in EIGENVALUES),
        layers.LDStack(4, basis="learned"),
    ],
    "OrthogonalRNN": [
        layers.OrthogonalRNN(4),
        layers.OrthogonalRNN(4, reflections=4),
        layers.OrthogonalRNN(4, field="complex"),
    ],
    "LipschitzRNN": [layers.LipschitzRNN(4, trainable_step_size=True)],
    "AntisymmetricRNN": [layers.AntisymmetricRNN(4, trainable_step_size=True)],
}


def test_the_table_of_weights_names_those_that_exist():
    rows = [
        line.split("|")[1:3]
        for line in ParameterGroups.__doc__.splitlines()
        if line.strip().startswith("| `")
    ]
    assert set(re.findall(r"`(\w+)`", str([u for u, _ in rows]))) == set(FORMS)
    for units, names in rows:
        for unit in re.findall(r"`(\w+)`", units):
            paths = [path for form in FORMS[unit] for path in paths_of(form)]
            for name in re.findall(r"`(\w+)`", names):
                assert any(name in path for path in paths), (unit, name)


def paths_of(layer):
    if not layer.built:
        layer.build((None, None, 4))
    return [weight.path for weight in layer.trainable_weights]


def test_a_group_without_weights_is_refused():
    optimizer = ParameterGroups(keras.optimizers.Adam(), {"log_timescale": 0.1})
    with pytest.raises(ValueError, match="Received: 'log_timescale'"):
        optimizer.build(small_model().trainable_weights)
