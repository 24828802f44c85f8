"""`keras.RematScope`: what is computed again for the gradient."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import tensors
from support.conformance_cases import EAGERLY
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import MASKS
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import sequential
from support.conformance_cases import twin
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences

pytestmark = pytest.mark.capability("`keras.RematScope`")


FORMS = {
    "plain": {},
    "dropout_and_states": {"dropout": 0.5, "seed": 1, "stateful": True},
}


def trained_in(mode, unit, inputs, targets, **eagerly):
    """What one step of training leaves of a copy of a unit."""
    with keras.RematScope(mode=mode):
        copy = type(unit).from_config(unit.get_config())
    model = sequential(keras.layers.Masking(-1.0), copy, batch=len(inputs))
    copy.set_weights([array(weight) for weight in unit.weights])
    model.compile(keras.optimizers.SGD(0.1), "mse", **eagerly)
    loss = model.train_on_batch(inputs, targets)
    states = copy.states if copy.stateful else ()
    return [loss, *copy.get_weights(), *(array(state) for state in states)]


@pytest.mark.parametrize("form", FORMS)
@EVERY_LAYER
def test_a_layer_in_a_remat_scope_trains_as_without(name, form):
    inputs = sequences(9, batch=3)
    inputs[~MASKS["holes"]] = -1.0
    targets = np.ones((3, 9, 4), "float32")
    unit = UNITS[name](**FORMS[form])
    unit.build((3, 9, 3))
    randomise(unit)
    without = trained_in(None, unit, inputs, targets, **EAGERLY)
    again = trained_in("full", unit, inputs, targets)
    assert_close(again, without, 1e-5)
    moved = zip(again[1:], unit.get_weights())
    assert any((one != other).any() for one, other in moved)


@EVERY_LAYER
def test_a_remat_scope_computes_a_recurrence_twice(name, monkeypatch):
    with keras.RematScope(mode="full"):
        layer = UNITS[name]()
    inputs, targets = sequences(5), np.ones((2, 5, 4), "float32")
    model = sequential(layer)
    if keras.backend.backend() == "jax":
        import jax

        # The second time XLA runs it, without Python.
        program = jax.make_jaxpr(lambda given: layer(given))(inputs)
        assert " remat2[" in str(program)
        return
    runs = []
    run = type(layer).run

    def counted(self, *args, **kwargs):
        runs.append(1)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(type(layer), "run", counted)
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(inputs, targets)
    before = len(runs)
    model.train_on_batch(inputs, targets)
    assert len(runs) - before == 2


@EVERY_LAYER
def test_gradients_of_weights_that_are_handed_in_are_the_same(name):
    """Where frameworks would lose them or take the layer's own weights."""
    inputs = sequences(5)
    results = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            layer = UNITS[name](seed=1)
        layer.build(inputs.shape)
        randomise(layer)

        def loss(weights, layer=layer):
            outputs, _ = layer.stateless_call(
                weights, layer.non_trainable_variables, inputs
            )
            return keras.ops.sum(keras.ops.square(outputs))

        if results:
            weights = results[0][0]
        else:
            weights = [array(weight) for weight in layer.trainable_variables]
        slopes = compiled(gradient(loss))(tensors(weights))
        results.append((weights, [array(slope) for slope in slopes]))
    assert_close(results[1][1], results[0][1], 1e-5)
    assert max(np.abs(slope).max() for slope in results[1][1]) > 0


class Again(keras.layers.Layer):
    """A user's layer, which has its unit compute twice by `keras.remat`."""

    def __init__(self, unit, remat):
        super().__init__()
        self.unit = unit
        self.remat = remat

    def call(self, inputs):
        # A function of its own for each call: of one that it has seen, JAX
        # remembers the weights.
        return self.remat(lambda given: self.unit(given))(inputs)

    def compute_output_shape(self, shape):
        return self.unit.compute_output_shape(shape)


@EVERY_LAYER
def test_a_layer_within_keras_remat_trains_as_without(name):
    unit = built(name)
    inputs, targets = sequences(6), np.ones((2, 6, 4), "float32")
    results = []
    for remat in (lambda layer: layer, keras.remat):
        model = sequential(Again(twin(unit), remat))
        model.compile(keras.optimizers.SGD(0.1), "mse", **EAGERLY)
        loss = model.train_on_batch(inputs, targets)
        results.append([loss, *model.get_weights()])
    assert_close(results[1], results[0], 1e-5)
    moved = zip(results[1][1:], unit.get_weights(), strict=True)
    assert any((one != other).any() for one, other in moved)
