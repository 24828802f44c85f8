"""The nonlinear scan of the CUDA core, as operations for GPUs.

The core has what is sequential, and the functions below the rest: products and
elementwise functions of all steps at once, which TensorFlow runs. The other
operations of the CUDA core take the arguments of those for the CPU, and
TensorFlow chooses between the two by the device.
"""

from functools import partial

import tensorflow as tf

from keras_linrec.kernels import registry
from keras_linrec.kernels.native.gradients import plain_gradient
from keras_linrec.kernels.operations import nonlinear_recurrence as recurrence
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.tensorflow.operations import run_call
from keras_linrec.kernels.tensorflow.pull_back import pull_back


def nonlinear_scan(call, operands):
    """States of all steps, and the last one.

    Args:
        call: `Call`.
        operands: flat list, those of `Operands`.
    """

    @tf.custom_gradient
    def run(*operands):
        given = Operands(*operands)
        outputs, final_state = _sequential(
            call,
            recurrence.drive_of(given),
            recurrence.matrix_of(given),
            given.step_size,
            given.resets,
            given.initial_state,
        )

        def gradient(*cotangents):
            return _gradient(call, operands, outputs, cotangents)

        return (outputs, final_state), gradient

    return run(*map(tf.convert_to_tensor, operands))


def _sequential(call, *tensors):
    """The results of the CUDA core's part of a call."""
    return run_call(call._replace(name=f"cuda_{call.name}"), tensors)


def _gradient(call, operands, outputs, cotangents):
    """Cotangents of the operands, which have a gradient of their own."""

    @tf.custom_gradient
    def run(*given):
        def second(*upstream):
            # The outputs are a function of the operands, whose gradients
            # include their part.
            kernel = registry.load("native")
            plain = partial(plain_gradient, pull_back, kernel, call)
            return pull_back(plain, given, upstream)

        return _gradients(call.backward, *given), second

    return run(*operands, tf.stop_gradient(outputs), *cotangents)


def _gradients(call, *given):
    """The cotangents of the operands; only those of states are sequential."""
    *operands, outputs, d_outputs, d_final_state = given
    operands, dynamics = Operands(*operands), recurrence.dynamics_of(call)
    stages = recurrence.stages_of(dynamics, operands, outputs, _slopes_of)
    d_slopes, d_initial_state = _sequential(
        call,
        recurrence.factors_of(stages),
        tf.transpose(recurrence.matrix_of(operands)),
        operands.resets,
        d_outputs,
        d_final_state,
    )
    gradients = recurrence.gradients_of(dynamics, operands, stages, d_slopes)
    return *gradients, d_initial_state


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    with tf.GradientTape() as tape:
        tape.watch(products)
        value = function(*products)
    # Of the sum, which has each derivative.
    return value, tape.gradient(value, products)
