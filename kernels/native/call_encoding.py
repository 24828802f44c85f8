"""How a call's flags and sizes are encoded: see `source/core.h`."""

import struct
from functools import partial

import keras

from keras_linrec import activations
from keras_linrec import double_precision
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.resets import are_given

COMPLEX, PER_STEP, REVERSE, FLOAT64, RESETS = 1, 2, 4, 8, 128


def flags_of(decay, reverse, resets):
    """The flags of a linear scan, without the number type."""
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (decay[0].ndim == 3)
        + REVERSE * bool(reverse)
        + RESETS * are_given(resets)
    )


def bits_of(number):
    """A float encoded as an integer, as the core takes it among its sizes."""
    return struct.unpack("q", struct.pack("d", number))[0]


def number_of(bits):
    """The inverse of `bits_of`."""
    return struct.unpack("d", struct.pack("q", bits))[0]


# Flags of moves of steps: see `source/core.h`.
TO_PLACES, WITH_MASKED = 16, 32


def move_flags(to_places, with_masked):
    """The flags of a move of steps."""
    return TO_PLACES * bool(to_places) + WITH_MASKED * bool(with_masked)


def transposed_move(flags):
    """The flags of a move's transpose, which is its gradient."""
    return flags ^ TO_PLACES


# Flags of activations and of nonlinear scans: see `source/core.h`.
LINEAR, GATED, _STEP_GRADIENT = 16, 32, 64
_SOLVER_BIT, _ACTIVATION_BIT = 8, 12
_SOLVERS = (None, "euler", "rk2", "rk4")
_LEAKY_RELU = 2
# In the order of `Activation` in `source/activation_kernels.h`.
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


def activation_flags(activation):
    """The flags and the leak of an activation, or None if the core lacks it."""
    leak = 0.0
    if isinstance(activation, keras.layers.LeakyReLU):
        code, leak = _LEAKY_RELU, float(activation.negative_slope)
    elif activation in _LEAKS:
        code, leak = _LEAKY_RELU, _LEAKS[activation]
    elif activation in ACTIVATIONS:
        code = ACTIVATIONS.index(activation)
    else:
        return None
    return code << _ACTIVATION_BIT, leak


def nonlinear_flags(dynamics, operands):
    """The flags and the leak of a call, or None if the core cannot run it.

    The arguments are those of `operations/nonlinear_recurrence.py`.
    """
    known = activation_flags(dynamics.activation)
    if known is None:
        return None
    flags, leak = known
    expansion, recurrent = operands.expansion, operands.recurrent_kernel
    linear = expansion.shape[0] == 0 and (
        recurrent.shape[1] != recurrent.shape[0]
    )
    flags += (
        PER_STEP * (tuple(operands.step_size.shape) != (1, 1))
        + LINEAR * linear
        + GATED * dynamics.gated
        + _STEP_GRADIENT * (dynamics.trained_steps and bool(dynamics.solver))
        + RESETS * are_given(operands.resets)
        + (_SOLVERS.index(dynamics.solver) << _SOLVER_BIT)
    )
    return flags, leak


def _activation_of(flags):
    return ACTIVATIONS[flags >> _ACTIVATION_BIT & 15]


def activation_of(flags, leak):
    """The activation that `activation_flags` encoded."""
    activation = _activation_of(flags)
    if activation is keras.activations.leaky_relu:
        return partial(double_precision.leaky_relu, negative_slope=leak)
    return activation


def is_modrelu(flags):
    """Whether the activation of a nonlinear scan has a bias of its own."""
    return _activation_of(flags) is activations.modrelu


def dynamics_of(flags, leak):
    """The `Dynamics` that `nonlinear_flags` encoded."""
    return Dynamics(
        activation_of(flags, leak),
        _SOLVERS[flags >> _SOLVER_BIT & 15],
        bool(flags & GATED),
        bool(flags & _STEP_GRADIENT),
    )
