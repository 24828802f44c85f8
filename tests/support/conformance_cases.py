"""The layers and cells that the suite is about, and what its tests share."""

import contextlib

import keras
import numpy as np
import pytest
from selection import standing_for_all
from support.units import REPRESENTATIVE
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import weights_of

from keras_linrec.layers import RNN
from keras_linrec.layers import AntisymmetricRNNCell
from keras_linrec.layers import LipschitzRNNCell
from keras_linrec.layers import OrthogonalRNNCell

FEATURES = 3


def in_rnn(cell, **fixed):
    """A maker of `layers.RNN` around a cell, with a layer's arguments."""

    def make(units=4, **arguments):
        loop = {
            name: arguments.pop(name)
            for name in (
                *("return_sequences", "return_state", "go_backwards"),
                *("stateful", "zero_output_for_mask"),
            )
            if name in arguments
        }
        # Which Keras' own layers give to their cells.
        both = {
            name: arguments[name]
            for name in ("dtype", "trainable")
            if name in arguments
        }
        return RNN(
            cell(units, **{**fixed, **arguments}),
            **{"return_sequences": True, **both, **loop},
        )

    return make


CELLS = {
    "antisymmetric_rnn_cell": in_rnn(
        AntisymmetricRNNCell, step_size=0.3, gamma=0.5
    ),
    "lipschitz_rnn_cell": in_rnn(LipschitzRNNCell, step_size=0.3, gamma=0.5),
    "orthogonal_rnn_cell": in_rnn(OrthogonalRNNCell, reflections=3),
}
MAKERS = {**UNITS, **CELLS}
BOTH_WAYS = ("rotrnn", {"bidirectional": True})


def every_form(names):
    """Layers as they are, and the one that reads in both directions itself."""
    return pytest.mark.parametrize(
        ("name", "form"),
        standing_for_all(
            [*((name, {}) for name in names), BOTH_WAYS],
            [(name, {}) for name in REPRESENTATIVE],
        ),
        ids=[*names, "rotrnn-bidirectional"],
    )


EVERY_LAYER = pytest.mark.parametrize(
    "name", standing_for_all(UNITS, REPRESENTATIVE)
)
EVERY_LAYER_AND_CELL = pytest.mark.parametrize(
    "name", standing_for_all(MAKERS, REPRESENTATIVE)
)
EVERY_LAYER_AND_FORM = every_form(UNITS)
EVERY_FORM_AND_CELL = every_form(MAKERS)
# TensorFlow traces a program for seconds that it runs for milliseconds.
EAGERLY = {"run_eagerly": keras.backend.backend() == "tensorflow"}

MASKS = {
    "right": np.arange(9) < np.array([[4], [9], [1]]),
    "left": np.arange(9) >= np.array([[3], [0], [8]]),
    "holes": np.random.default_rng(0).random((3, 9)) < 0.6,
    "a_whole_row": np.array([[True] * 9, [False] * 9, [False] * 8 + [True]]),
}
EVERY_MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def made(name, **arguments):
    return MAKERS[name](**arguments)


def built(name, features=FEATURES, **arguments):
    layer = made(name, **arguments)
    layer.build((None, None, features))
    return randomise(layer)


def twin(layer, **changes):
    """A layer with the same weights and other arguments."""
    other = type(layer).from_config({**layer.get_config(), **changes})
    other.build((None, None, FEATURES))
    # Copies: what trains one does not reach the other.
    for weight, value in zip(other.weights, layer.weights, strict=True):
        weight.assign(array(value).copy())
    return other


def unit_of(name):
    """The record of a unit, or of the unit that a cell belongs to."""
    return UNITS[name.removesuffix("_cell")]


def definition(
    name, layer, inputs, states=(), form=(), weights=None, **options
):
    """What the paper's float64 loop gives: outputs and final states."""
    return unit_of(name).defined(
        dict(form),
        weights_of(layer) if weights is None else weights,
        np.asarray(inputs, "float64"),
        *(np.asarray(state, "float64") for state in states),
        **options,
    )


def assert_close(got, expected, tolerance=1e-4):
    for one, other in zip(
        keras.tree.flatten(got), keras.tree.flatten(expected), strict=True
    ):
        one, other = array(one), array(other)
        assert one.shape == other.shape
        scale = max(np.abs(other).max(initial=0), 1.0)
        assert np.abs(one - other).max(initial=0) <= tolerance * scale


def sequential(*layers, batch=None, time=None):
    return keras.Sequential(
        [keras.Input((time, FEATURES), batch_size=batch), *layers]
    )


def stateful_model(name, batch=2, **arguments):
    layer = UNITS[name](stateful=True, **arguments)
    return sequential(layer, batch=batch), layer


@contextlib.contextmanager
def float64():
    """JAX has float64 only where it is switched on."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    # Scopes may be nested.
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
