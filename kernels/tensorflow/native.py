"""The cores on TensorFlow: operations for the CPU, and for GPUs.

Importing this module builds and loads the library. The operations run in eager
mode, in graphs and under XLA; `source/adapters/tensorflow.cpp` makes them of
the core's table.
"""

from functools import partial

import numpy as np
import tensorflow as tf

from keras_linrec.kernels import backends
from keras_linrec.kernels.native import table
from keras_linrec.kernels.native.call_encoding import number_of
from keras_linrec.kernels.native.gradients import dense_cotangents
from keras_linrec.kernels.native.gradients import gradient_arguments
from keras_linrec.kernels.native.gradients import of_all_arguments
from keras_linrec.kernels.native.gradients import second_gradient
from keras_linrec.kernels.native.table import REAL
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import operations
from keras_linrec.kernels.native.table import with_cotangents
from keras_linrec.kernels.operations import native_functions
from keras_linrec.kernels.tensorflow import cuda
from keras_linrec.kernels.tensorflow.operations import run_call
from keras_linrec.kernels.tensorflow.pull_back import pull_back


def run(call, *quantities):
    """The results of a native call that have cotangents."""
    tensors = flatten(quantities)
    # A weight's dtype is a string.
    like = tf.as_dtype(tensors[0].dtype)
    nothing = np.zeros((0, 0), like.as_numpy_dtype)
    tensors = [
        nothing if part is None else tf.cast(part, like) for part in tensors
    ]
    # A gradient may be asked for.
    call = call.with_all_steps()
    on_cuda = _is_on_cuda(call, quantities)
    if on_cuda and not call.operation.on_cuda:
        # The CUDA core has the sequential part alone.
        return cuda.nonlinear_scan(call, tensors)
    return with_cotangents(call, run_call(call, tensors, on_cuda=on_cuda))


def _is_on_cuda(call, quantities):
    """Whether the CUDA core runs a call: where its inputs are, or its matrix.

    Weights may lie elsewhere.
    """
    if not table.runs_on_cuda(call.name):
        return False
    names = [one.name for one in call.operation.arguments]
    place = names.index("inputs") if "inputs" in names else -1
    (inputs, *_) = flatten([quantities[place]])
    backend = backends.current()
    platform = backend.describe(inputs)["platform"]
    return platform == "cuda" and backend.has_native(platform)


# Gradients. TensorFlow passes the operation, with inputs and outputs in flat
# lists; the cotangent of an unused output may be None.


def _call_of(name, operation):
    """The `Call` that an operation of TensorFlow makes."""
    numbers = tuple(
        number_of(operation.get_attr(attribute))
        if attribute in REAL
        else operation.get_attr(attribute)
        for attribute in operations()[name].attributes
    )
    return Call(name, operation.get_attr("flags"), numbers)


def _gradient(name, on_cuda, operation, *cotangents):
    call = _call_of(name, operation)
    results = operation.outputs
    cotangents = dense_cotangents(call, results, cotangents, tf.zeros_like)
    backward, wanted = call.backward, None
    if backward.operation.wanted:
        wanted = backward.operation.wanted_for(_needed(operation))
    given = gradient_arguments(call, operation.inputs, results, cotangents)
    gradients = run_call(backward, given, wanted, on_cuda)
    return of_all_arguments(call, gradients, wanted)


def _needed(operation):
    """Which inputs of an operation need a gradient, as far as is known.

    TensorFlow's tapes know; `tf.gradients`, and a tape around a `tf.function`,
    which has a graph of its own, do not.
    """
    skipped = getattr(operation, "skip_input_indices", None) or ()
    return [index not in skipped for index in range(len(operation.inputs))]


def _second_gradient(name, _, operation, *cotangents):
    """In operations that TensorFlow differentiates as often as it has to."""
    call = _call_of(name, operation)
    wanted = None
    if call.operation.wanted:
        wanted = operation.get_attr("wanted")
    cotangents = [
        tf.zeros_like(result) if cotangent is None else cotangent
        for cotangent, result in zip(cotangents, operation.outputs, strict=True)
    ]
    return second_gradient(
        pull_back,
        call.forward,
        operation.inputs,
        cotangents,
        wanted,
        unconnected="none",
    )


def _register_gradients():
    for name, operation in operations().items():
        gradient = _second_gradient if operation.is_gradient else _gradient
        words = "".join(word.title() for word in name.split("_"))
        cores = ["Cuda"] * operation.on_cuda + [""]
        for core in cores if operation.on_cpu else ():
            register = tf.RegisterGradient(f"KerasLinrec{core}{words}")
            register(partial(gradient, name, bool(core)))


_register_gradients()


FUNCTIONS = native_functions(run)
