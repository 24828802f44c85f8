"""The nonlinear scan of the CUDA core, as operations for GPUs.

The core has what is sequential, and the functions below the rest: products and
elementwise functions of all steps at once, which TensorFlow runs. The other
operations of the CUDA core take the arguments of those for the CPU, and
`native.py` calls both.
"""

from functools import partial

import tensorflow as tf

from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.nonlinear_recurrence import METHODS
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.nonlinear_recurrence import drive_of
from keras_linrec.kernels.nonlinear_recurrence import matrices_of
from keras_linrec.kernels.nonlinear_recurrence import slope_of
from keras_linrec.kernels.nonlinear_recurrence import states_before
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
            _factors(dynamics, given, before),
            tf.transpose(tf.concat(matrices_of(given), axis=1)),
            given.resets,
            *cotangents,
            flags=flags[0],
            leak=bits_of(flags[1]),
        )
    )
    # A state is the sum of the slopes, the last of which no other stage reads.
    share = METHODS[dynamics.solver or "euler"][1][-1]
    d_states = d_slopes[:, -1] / share

    def steps(operands):
        """All steps, which do not depend on one another."""
        given = Operands(*operands)
        states, drive = (
            tf.reshape(part, (-1, part.shape[-1]))
            for part in (before, drive_of(given))
        )
        states = nonlinear_recurrence.next_state(
            dynamics,
            states,
            drive,
            weights=given[3:5],
            step_size=tf.reshape(given.step_size, (-1, 1)),
            modulus_bias=given.modulus_bias,
        )
        return tf.reshape(states, tf.shape(before))

    *gradients, _ = pull_back(steps, given, d_states)
    return *gradients, d_initial_state


def _factors(dynamics, given, before):
    """Derivatives of the slopes with respect to A h and W h, times the step.

    For all steps at once: (batch, stages, time, parts x units).
    """
    matrices = matrices_of(given)
    drive = tf.split(drive_of(given), 1 + dynamics.gated, axis=-1)
    step_size = given.step_size[..., None] if dynamics.solver else 1.0
    slope, factors = 0.0, []
    for shift in METHODS[dynamics.solver or "euler"][0]:
        start = before + shift * step_size * slope
        products = [matmul(start, matrix) for matrix in matrices]
        with tf.GradientTape() as tape:
            tape.watch(products)
            slope = slope_of(dynamics, drive, products)
        # Elementwise, so that the gradient of the sum has each derivative.
        slopes = tape.gradient(slope, products)
        factors.append(tf.concat([step_size * part for part in slopes], -1))
    return tf.stack(factors, axis=1)
