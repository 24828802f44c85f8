"""The `call` that a layer gets for arguments of its own."""

import inspect

import pytest
from support.units import array
from support.units import sequences

from keras_linrec import layers
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import for_bases


def test_it_refuses_what_it_does_not_take():
    layer = layers.LSSL(2, state_size=4)
    given = sequences(5)
    layer(given)
    many = [None] * len(inspect.signature(layer.call).parameters)
    for args, kwargs in (
        ((given,), {"no_such": None}),
        ((given, None), {"initial_state": None}),
        ((given, *many), {}),
    ):
        with pytest.raises(TypeError):
            layer.call(*args, **kwargs)


def test_a_step_refuses_an_unknown_argument_without_a_value():
    layer = layers.LSSL(2, state_size=4)
    given = sequences(5)
    layer(given)
    states = layer.get_initial_state(len(given))
    with pytest.raises(TypeError, match="no_such"):
        layer.step(array(given)[:, 0], states, no_such=None)


def test_a_users_call_between_stays():
    class Mine(layers.LSSL):
        def call(self, sequences, **kwargs):
            return "mine"

    class More(Mine):
        call_arguments = ("time_deltas",)

    assert More.call is Mine.call
    assert layers.LSSL.call is not SequenceLayer.call


def test_the_bases_of_a_user_get_their_arguments():
    class Base(SequenceLayer):
        def __init__(self, units, gain=1.0, **kwargs):
            super().__init__(units, **kwargs)
            self.gain = gain

    class Mine(Base):
        def __init__(self, units, gain=2.0, dropout=0.0, **kwargs):
            super().__init__(**for_bases(Mine, locals()))

    layer = Mine(3, gain=5.0, dropout=0.5, name="mine")
    assert (layer.units, layer.gain, layer.dropout) == (3, 5.0, 0.5)
    assert layer.name == "mine"


def test_shapes_of_the_calls_own_arguments_in_a_file_are_left_out():
    layer = layers.LSSL(2, state_size=4)
    shapes = {"sequences_shape": (2, 5, 3), "time_deltas_shape": (2, 5)}
    layer.build_from_config({})
    assert not layer.built
    layer.build_from_config({"shapes_dict": shapes})
    assert layer.built
