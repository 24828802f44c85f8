"""How a call's flags and sizes are encoded: see `source/base/core.h`."""

import struct
from functools import partial

import keras

from keras_linrec import activations
from keras_linrec import double_precision
from keras_linrec.kernels.resets import are_given

COMPLEX, PER_STEP, REVERSE, FLOAT64, RESETS = 1, 2, 4, 8, 128
# Of structured scans.
FROM_ZEROS = 16


def flags_of(decay, reverse, resets):
    """The flags of a linear scan, without the number type."""
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (len(decay[0].shape) == 3)
        + REVERSE * bool(reverse)
        + reset_flag(resets)
    )


def reset_flag(resets):
    """The flag of resets, which may be `None`."""
    return RESETS * (resets is not None and are_given(resets))


def bits_of(number):
    """A float encoded as an integer, as the core takes it among its sizes."""
    return struct.unpack("q", struct.pack("d", number))[0]


def number_of(bits):
    """The inverse of `bits_of`."""
    return struct.unpack("d", struct.pack("q", bits))[0]


# Flags of moves of steps: see `source/base/core.h`.
TO_PLACES, WITH_MASKED = 16, 32

# A flag of scans of matrix states.
LOGARITHMIC = 16

# A flag of diagonal systems.
BILINEAR = 16

# Flags of gated scans: see `source/base/core.h`.
TWO_GATES, RATES, POSITIVE = 16, 32, 64

# Flags of activations and of nonlinear scans: see `source/base/core.h`.
LINEAR, GATED, STEP_GRADIENT = 16, 32, 64
SOLVER_BIT, ACTIVATION_BIT = 8, 12
_SOLVERS = (None, "euler", "rk2", "rk4")
# In the order of `Activation` in `source/base/activation_kernels.h`.
ACTIVATIONS = (
    keras.activations.linear,
    keras.activations.relu,
    keras.activations.leaky_relu,
    keras.activations.tanh,
    keras.activations.sigmoid,
    activations.oplu,
    activations.modrelu,
    keras.activations.gelu,
)
# The slope below zero of each function that is a leaky ReLU.
_LEAKS = {activations.leaky_relu: 0.1, keras.activations.leaky_relu: 0.2}


def solver_flags(solver):
    """The flags of a solver."""
    return _SOLVERS.index(solver) << SOLVER_BIT


def solver_of(flags):
    """The inverse of `solver_flags`."""
    return _SOLVERS[flags >> SOLVER_BIT & 15]


def activation_flags(activation):
    """The flags and the leak of an activation, or None if the core lacks it."""
    leak = 0.0
    if isinstance(activation, keras.layers.LeakyReLU):
        leak = float(activation.negative_slope)
        activation = keras.activations.leaky_relu
    elif activation in _LEAKS:
        leak = _LEAKS[activation]
        activation = keras.activations.leaky_relu
    if activation not in ACTIVATIONS:
        return None
    return ACTIVATIONS.index(activation) << ACTIVATION_BIT, leak


def activation_of(flags, leak):
    """The activation that `activation_flags` encoded."""
    activation = ACTIVATIONS[flags >> ACTIVATION_BIT & 15]
    if activation is keras.activations.leaky_relu:
        return partial(double_precision.leaky_relu, negative_slope=leak)
    return activation
