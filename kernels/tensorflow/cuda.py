"""The nonlinear scan of the CUDA core, as operations for GPUs.

The core has what is sequential, and the functions below the rest: products and
elementwise functions of all steps at once, which TensorFlow runs. The other
operations of the CUDA core take the arguments of those for the CPU, and
`native.py` calls both.
"""

from functools import partial

import tensorflow as tf

from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import all_steps
from keras_linrec.kernels.operations.nonlinear_recurrence import drive_of
from keras_linrec.kernels.operations.nonlinear_recurrence import factors_of
from keras_linrec.kernels.operations.nonlinear_recurrence import matrices_of
from keras_linrec.kernels.operations.nonlinear_recurrence import (
    state_cotangents,
)
from keras_linrec.kernels.operations.nonlinear_recurrence import states_before
from keras_linrec.kernels.tensorflow.loop import loop
from keras_linrec.kernels.tensorflow.operations import library
from keras_linrec.kernels.tensorflow.pull_back import pull_back


def nonlinear_scan(flags, dynamics, operands):
    """States of all steps, and the last one.

    Args:
        flags: those of `call_encoding.nonlinear_flags`, and the leak.
        dynamics: `Dynamics`.
        operands: `Operands`.
    """

    @tf.custom_gradient
    def run(*operands):
        given = Operands(*operands)
        outputs, final_state = library.keras_linrec_cuda_nonlinear_scan(
            drive_of(given),
            tf.concat(matrices_of(given), axis=1),
            given.step_size,
            given.resets,
            given.initial_state,
            flags=flags[0],
            leak=bits_of(flags[1]),
        )

        def gradient(*cotangents):
            return _gradient(flags, dynamics, operands, outputs, cotangents)

        return (outputs, final_state), gradient

    return run(*operands)


def _gradient(flags, dynamics, operands, outputs, cotangents):
    """Cotangents of the operands, which have a gradient of their own."""

    @tf.custom_gradient
    def run(*given):
        *operands, outputs, d_outputs, d_final_state = given
        gradients = _gradients(
            flags,
            dynamics,
            Operands(*operands),
            outputs,
            (d_outputs, d_final_state),
        )

        def second(*upstream):
            # The outputs are a function of the operands, whose gradients
            # include their part.
            return pull_back(partial(_plain, dynamics), given, upstream)

        return gradients, second

    return run(*operands, tf.stop_gradient(outputs), *cotangents)


def _plain(dynamics, given):
    """The cotangents of the operands, in operations with a gradient."""
    *operands, _, d_outputs, d_final_state = given

    def states(operands):
        return list(
            nonlinear_recurrence.with_last_state(
                loop, dynamics, Operands(*operands)
            )
        )

    return pull_back(states, operands, [d_outputs, d_final_state])


def _gradients(flags, dynamics, given, outputs, cotangents):
    """The cotangents of the operands; only those of states are sequential."""
    before = states_before(given, outputs)
    d_slopes, d_initial_state = (
        library.keras_linrec_cuda_nonlinear_scan_backward(
            factors_of(dynamics, given, before, _slopes_of),
            tf.transpose(tf.concat(matrices_of(given), axis=1)),
            given.resets,
            *cotangents,
            flags=flags[0],
            leak=bits_of(flags[1]),
        )
    )
    steps = partial(all_steps, dynamics, before=before)
    d_states = state_cotangents(dynamics, d_slopes)
    *gradients, _ = pull_back(steps, given, d_states)
    return *gradients, d_initial_state


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    with tf.GradientTape() as tape:
        tape.watch(products)
        value = function(*products)
    # Of the sum, which has each derivative.
    return value, tape.gradient(value, products)
