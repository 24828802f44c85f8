"""The nonlinear scan of the CUDA core, as operations for GPUs.

The core has what is sequential, and the functions below the rest: products and
elementwise functions of all steps at once, which TensorFlow runs. The other
operations of the CUDA core take the arguments of those for the CPU, and
`native.py` calls both.
"""

from functools import partial

import tensorflow as tf
from keras import ops

from keras_linrec import double_precision
from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.nonlinear_recurrence import METHODS
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.resets import are_given
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
            _drive(given),
            tf.concat(_matrices(given), axis=1),
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
    before = _states_before(given, outputs)
    d_slopes, d_initial_state = (
        library.keras_linrec_cuda_nonlinear_scan_backward(
            _factors(dynamics, given, before),
            tf.transpose(tf.concat(_matrices(given), axis=1)),
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
            for part in (before, _drive(given))
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


def _states_before(given, outputs):
    """The state from which each step starts, (batch, time, units)."""
    before = tf.concat([given.initial_state[:, None], outputs[:, :-1]], axis=1)
    if not are_given(given.resets):
        return before
    return tf.where(given.resets[..., None] != 0, tf.zeros_like(before), before)


def _factors(dynamics, given, before):
    """Derivatives of the slopes with respect to h A and h R, times the step.

    For all steps at once: (batch, stages, time, parts x units).
    """
    matrices = _matrices(given)
    drive = tf.split(_drive(given), 1 + dynamics.gated, axis=-1)
    step_size = given.step_size[..., None] if dynamics.solver else 1.0
    slope, factors = 0.0, []
    for shift in METHODS[dynamics.solver or "euler"][0]:
        start = before + shift * step_size * slope
        products = [matmul(start, matrix) for matrix in matrices]
        with tf.GradientTape() as tape:
            tape.watch(products)
            slope = _slope(dynamics, drive, products)
        # Elementwise, so that the gradient of the sum has each derivative.
        slopes = tape.gradient(slope, products)
        factors.append(tf.concat([step_size * part for part in slopes], -1))
    return tf.stack(factors, axis=1)


def _slope(dynamics, drive, products):
    """The derivative of a state by time.

    Args:
        dynamics: `Dynamics`.
        drive: that of the state, followed by the gate's if there is one.
        products: h A, if there is an A, and h R.
    """
    *linear, product = products
    change = double_precision.activate(dynamics.activation, product + drive[0])
    for part in linear:
        change = part + change
    if not dynamics.gated:
        return change
    return ops.sigmoid(product + drive[1]) * change


def _drive(given):
    product = double_precision.product(given.inputs, given.input_kernel)
    return product + given.bias


def _matrices(given):
    """A, if there is one, and R, which a row of states multiplies."""
    kernel, expansion = given.recurrent_kernel, given.expansion
    if expansion.shape[0]:
        product = matmul(kernel, expansion)
        return [tf.eye(expansion.shape[1], dtype=product.dtype) - product]
    units = given.initial_state.shape[1]
    return tf.split(kernel, kernel.shape[1] // units, axis=1)
