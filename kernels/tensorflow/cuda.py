"""The nonlinear scan of the CUDA core, as operations for GPUs.

The core has what is sequential, and the functions below the rest: products and
elementwise functions of all steps at once, which TensorFlow runs. The other
operations of the CUDA core take the arguments of those for the CPU, and
TensorFlow chooses between the two by the device.
"""

from functools import partial

import tensorflow as tf

from keras_linrec.kernels.native.gradients import second_gradient
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
        given = recurrence.sequential_operands(Operands(*operands))
        outputs, final_state = _sequential(call, *given)

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
            return second_gradient(pull_back, call, given, upstream)

        backward = call.backward
        found = recurrence.cotangents(
            backward, given, partial(_sequential, backward), _slopes_of
        )
        return found, second

    return run(*operands, tf.stop_gradient(outputs), *cotangents)


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    with tf.GradientTape() as tape:
        tape.watch(products)
        value = function(*products)
    # Of the sum, which has each derivative.
    return value, tape.gradient(value, products)
