"""Small blocks and models for the tests of `keras_linrec.models`."""

import keras
import pytest
from support.units import array
from support.units import randomise

from keras_linrec.layers import LSSL
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier

NORMALIZATIONS = ("layer", "rms", "batch")
POOLINGS = ("mean", "max", "last", None)
# Those without a nonlinearity of their own.
LINEAR = ("linear_dynamical_system", "linoss", "lru", "rotrnn", "s5")

EVERY_NORM = pytest.mark.parametrize(
    ("normalization", "norm_first"),
    [*((name, True) for name in NORMALIZATIONS), ("layer", False)],
)


def make_unit(**arguments):
    return LSSL(**{"state_size": 5, "dt_min": 0.01, **arguments})


def make_rotrnn(**arguments):
    return RotRNN(**{"state_size": 8, "num_heads": 2, **arguments})


def make_model(kind=SequenceClassifier, outputs=3, **arguments):
    defaults = {"num_layers": 2, "units": 4}
    if "unit" not in arguments:
        defaults["unit_arguments"] = {"state_size": 5, "dt_min": 0.01}
    return kind(outputs, **{**defaults, **arguments})


def built(model, features=3):
    model.build((None, None, features))
    return randomise(model)


def numbers(layer, inputs):
    return array(layer(inputs))


@keras.saving.register_keras_serializable("keras_linrec_tests")
class Recorder(keras.layers.Layer):
    """A unit that does nothing, and keeps what it was called with."""

    def call(self, sequences, time_deltas=None, step_rescale=None):
        self.received = (time_deltas, step_rescale)
        return sequences

    def compute_output_shape(self, sequences_shape):
        return sequences_shape
