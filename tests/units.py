"""The sequence units under test: how to make one, and its definition."""

from functools import partial

import keras
import numpy as np
from autodiff import compiled
from autodiff import to_numpy
from definitions import ldstack
from definitions import lipschitz_rnn
from definitions import lssl
from definitions import orthogonal_rnn
from definitions import rotrnn

from keras_linrec.layers import LSSL
from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.layers import RotRNN


def make_lssl(units=4, **arguments):
    defaults = {"state_size": 6, "channels": 2, "dt_min": 0.01}
    return LSSL(units, **{**defaults, **arguments})


def make_rotrnn(units=4, **arguments):
    defaults = {"state_size": 10, "num_heads": 2}
    return RotRNN(units, **{**defaults, **arguments})


def make_ldstack(units=4, **arguments):
    # Logarithms of magnitudes stay negative when weights are moved.
    defaults = {"state_size": 6, "eigenvalues": "log_polar"}
    return LDStack(units, **{**defaults, **arguments})


def make_linear_dynamical_system(units=4, **arguments):
    defaults = {"state_size": 9, "eigenvalues": "unit"}
    return LinearDynamicalSystem(units, **{**defaults, **arguments})


# The nonlinear units return the last output by themselves, as Keras' own do.


def make_orthogonal_rnn(units=4, **arguments):
    defaults = {"reflections": 3, "return_sequences": True}
    return OrthogonalRNN(units, **{**defaults, **arguments})


def make_lipschitz_rnn(units=4, **arguments):
    defaults = {"step_size": 0.3, "gamma": 0.5, "return_sequences": True}
    return LipschitzRNN(units, **{**defaults, **arguments})


def make_antisymmetric_rnn(units=4, **arguments):
    defaults = {"step_size": 0.3, "gamma": 0.5, "return_sequences": True}
    return AntisymmetricRNN(units, **{**defaults, **arguments})


UNITS = {
    "antisymmetric_rnn": make_antisymmetric_rnn,
    "ldstack": make_ldstack,
    "linear_dynamical_system": make_linear_dynamical_system,
    "lipschitz_rnn": make_lipschitz_rnn,
    "lssl": make_lssl,
    "orthogonal_rnn": make_orthogonal_rnn,
    "rotrnn": make_rotrnn,
}
DEFINITIONS = {
    "antisymmetric_rnn": partial(
        lipschitz_rnn.lipschitz_rnn,
        step_size=0.3,
        gamma=0.5,
        alpha=0.0,
        beta=1.0,
    ),
    "ldstack": ldstack.ldstack,
    "linear_dynamical_system": ldstack.linear_dynamical_system,
    "lipschitz_rnn": partial(
        lipschitz_rnn.lipschitz_rnn, step_size=0.3, gamma=0.5
    ),
    "lssl": lssl.lssl,
    "orthogonal_rnn": orthogonal_rnn.orthogonal_rnn,
    "rotrnn": rotrnn.rotrnn,
}


def weights_of(layer):
    """The weights as float64 arrays, by name."""
    names = [weight.name for weight in layer.weights]
    return dict(zip(names, to_numpy(layer.weights)))


def randomise(layer, seed=0):
    """Move every weight away from its initial value."""
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        value = keras.ops.convert_to_numpy(weight)
        noise = generator.standard_normal(value.shape)
        weight.assign(value * (1 + 0.1 * noise) + 0.01 * noise * (value != 0))
    return layer


def sequences(time, batch=2, features=3, seed=0):
    generator = np.random.default_rng([seed, time])
    return generator.standard_normal((batch, time, features)).astype("float32")


def initial_states(layer, batch=2, seed=1):
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal((batch, *shape)).astype("float32")
        for shape in layer.state_shapes
    ]


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def outputs_of(layer, inputs):
    """What a layer makes of sequences, in one program on JAX."""
    if not layer.built:
        layer.build(inputs.shape)
    return array(compiled(lambda given: layer(given[0]))([inputs]))
