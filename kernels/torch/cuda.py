"""Calls of the CUDA core on PyTorch's tensors.

Plain functions without gradients: `operators.py` makes operators of them. The
linear scan is called as that of the C++ core is. Of the nonlinear scan the CUDA
core has the sequential part, and `operations/nonlinear_recurrence.py` the rest:
large products, and elementwise functions of all steps at once.
"""

from contextlib import contextmanager
from functools import partial

import keras
import torch

from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.native.table import result_shapes
from keras_linrec.kernels.native.table import sizes_of
from keras_linrec.kernels.operations import nonlinear_recurrence as recurrence
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.torch.tensors import device_of
from keras_linrec.kernels.torch.tensors import number_flag


def call(name, flags, sizes, arguments, results):
    """Queue a function of the CUDA core on the current stream.

    `arguments` and `results` are tensors in the order of the C function, all on
    one device; `flags` are without the number type. The call does not wait for
    the results.
    """
    # They live until the call has been queued. PyTorch gives their memory only
    # to work that the stream runs afterwards.
    arguments = [tensor.contiguous() for tensor in arguments]
    flags |= number_flag(name, arguments)
    device = device_of(name, [*arguments, *results])
    function = f"keras_linrec_{name}"
    scratch = torch.empty(
        cuda.scratch_bytes(function, flags, sizes),
        dtype=torch.uint8,
        device=device,
    )
    stream = None
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
    cuda.call(
        function,
        flags,
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
        scratch.data_ptr(),
        stream,
    )


def nonlinear_scan(called, operands):
    """States of all steps, or of none if the call keeps none, and the last one.

    `operands` are those of `operations/nonlinear_recurrence.py`, in a list and
    with any leading axes, which are those of systems; `called` is a `Call`.
    """
    given = Operands(*operands)
    with _where_they_are(called, operands):
        prepare = _for_each_system(recurrence.sequential_operands, given)
        return _sequential(called, *prepare(given))


def nonlinear_scan_backward(called, tensors):
    """Cotangents of the operands; a `d_outputs` without steps means zeros."""
    *operands, outputs, d_outputs, d_final_state = tensors
    given, dynamics = Operands(*operands), recurrence.dynamics_of(called)
    with _where_they_are(called, tensors):
        prepare = partial(_stages_factors_and_matrix, dynamics)
        stages, factors, matrix = _for_each_system(prepare, given)(
            given, outputs
        )
        d_slopes, d_initial_state = _sequential(
            called,
            factors,
            matrix.mT,
            given.resets,
            d_outputs,
            d_final_state,
        )
        finish = partial(recurrence.gradients_of, dynamics)
        gradients = _for_each_system(finish, given)(given, stages, d_slopes)
        return [*(part.contiguous() for part in gradients), d_initial_state]


@contextmanager
def _where_they_are(called, tensors):
    """A scope for Keras' functions of tensors, all on one device.

    Keras would move them to its own, and PyTorch leaves autocast on inside an
    operator.
    """
    device = device_of(called.name, tensors)
    with (
        keras.device(str(device)),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _for_each_system(function, operands):
    """A function of one system, for tensors with the operands' leading axes."""
    for _ in operands.inputs.shape[:-3]:
        function = torch.vmap(function)
    return function


def _sequential(called, *tensors):
    """The results of the CUDA core's part of a call."""
    part = called._replace(name=f"cuda_{called.name}")
    shapes = tuple([tensor.shape for tensor in tensors])
    results = [
        tensors[0].new_empty(shape) for shape in result_shapes(part, shapes)
    ]
    sizes = sizes_of(part, shapes)
    call(called.name, called.flags, sizes, tensors, results)
    return results


def _stages_factors_and_matrix(dynamics, operands, outputs):
    stages = recurrence.stages_of(dynamics, operands, outputs, _slopes_of)
    return stages, recurrence.factors_of(stages), recurrence.matrix_of(operands)


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    # Not `torch.autograd`, which is off inside an operator.
    value, pull_back = torch.func.vjp(function, *products)
    return value, pull_back(torch.ones_like(value))
