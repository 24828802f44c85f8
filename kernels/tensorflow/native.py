"""The cores on TensorFlow: C++ operations for the CPU, CUDA's for GPUs.

Importing this module builds and loads the library. The operations run in eager
mode, in graphs and under XLA; `source/tensorflow.cpp` defines them.
"""

from functools import partial

import tensorflow as tf

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import varying_block
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import move_flags
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.native.call_encoding import number_of
from keras_linrec.kernels.native.call_encoding import transposed_move
from keras_linrec.kernels.operations import carried_response as carried
from keras_linrec.kernels.operations import causal_convolution as convolution
from keras_linrec.kernels.operations import impulse_response as plain
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations import projected_scan as projection
from keras_linrec.kernels.operations import varying_response as varying
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.resets import or_none
from keras_linrec.kernels.tensorflow import cuda
from keras_linrec.kernels.tensorflow.loop import loop
from keras_linrec.kernels.tensorflow.operations import library as _operations
from keras_linrec.kernels.tensorflow.operations import operation_for
from keras_linrec.kernels.tensorflow.operations import runs_on_cuda
from keras_linrec.kernels.tensorflow.pull_back import pull_back
from keras_linrec.kernels.wanted import replace_unwanted
from keras_linrec.kernels.wanted import response_gradients


def scan(decay, inputs, initial_state, reverse=False, resets=None):
    """Outputs and final state, both tuples."""
    decay, inputs, initial_state = _tensors(decay, inputs, initial_state)
    outputs, final_state = operation_for("scan", inputs[0])(
        decay,
        inputs,
        _given(resets, inputs[0]),
        initial_state,
        reverse=bool(reverse),
    )
    return tuple(outputs), tuple(final_state)


def projected_scan(
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """Outputs, a tensor, and the final state, a tuple."""
    decay, (inputs,), *kernels, initial_state = _tensors(
        decay, (inputs,), input_kernel, output_kernel, initial_state
    )
    outputs, final_state, _ = _operations.keras_linrec_projected_scan(
        decay,
        inputs,
        *kernels,
        _given(resets, inputs),
        initial_state,
        reverse=bool(reverse),
        block=block_length(len(decay) * decay[0].shape[-1]),
    )
    return outputs, tuple(final_state)


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.operations.impulse_response`."""
    arguments = p, d, q, t, b, timescale, output_matrix
    return operation_for("impulse_response", output_matrix)(
        *arguments, time=time, alpha=bits_of(alpha)
    )


def varying_response(*arguments):
    """See `keras_linrec.kernels.operations.varying_response`."""
    *arguments, alpha = arguments
    outputs, final_state, _ = _operations.keras_linrec_varying_response(
        *arguments,
        block=varying_block(arguments[-2].shape[1], arguments[-1].shape[2]),
        alpha=bits_of(float(alpha)),
    )
    return outputs, final_state


def carried_response(*arguments):
    """See `keras_linrec.kernels.operations.carried_response`."""
    *arguments, alpha = arguments
    outputs, final_state = _operations.keras_linrec_carried_response(
        *arguments, alpha=bits_of(float(alpha))
    )
    return outputs, final_state


def causal_convolution(inputs, response, activation):
    """See `keras_linrec.kernels.operations.causal_convolution`."""
    flags, leak = activation_flags(activation)
    return _operations.keras_linrec_causal_convolution(
        inputs, response, flags=flags, leak=bits_of(leak)
    )


def move_steps(sequences, mask, to_places, with_masked):
    """See `keras_linrec.kernels.operations.move_steps`."""
    return _operations.keras_linrec_move_steps(
        sequences,
        tf.cast(mask, sequences.dtype),
        flags=move_flags(to_places, with_masked),
    )


def nonlinear_scan(dynamics, operands, keep_all=True):
    """See `Kernel.nonlinear_scan` in the registry."""
    operands = nonlinear_recurrence.Operands(
        *map(tf.convert_to_tensor, operands)
    )
    flags = nonlinear_flags(dynamics, operands)
    if runs_on_cuda(operands.inputs):
        return cuda.nonlinear_scan(flags, dynamics, operands)
    return _operations.keras_linrec_nonlinear_scan(
        *operands, flags=flags[0], leak=bits_of(flags[1])
    )


def _tensors(*quantities):
    # The generated wrappers accept a list of tensors only as a `list`, and
    # without variables in it.
    return [
        [tf.convert_to_tensor(part) for part in parts] for parts in quantities
    ]


def _given(resets, inputs):
    """The resets, or a tensor without entries."""
    return tf.zeros((0, 0), inputs.dtype) if resets is None else resets


# Gradients. TensorFlow passes the operation, with inputs and outputs in flat
# lists; the cotangent of an unused output may be None.


def _cut(tensors, quantities, parts):
    """A flat list, cut into lists of one tensor (for 1) or of `parts`."""
    tensors = iter(tensors)
    return [
        [next(tensors) for _ in range(parts if twofold else 1)]
        for twofold in quantities
    ]


def _filled(cotangents, results):
    return [
        tf.zeros_like(result) if cotangent is None else cotangent
        for cotangent, result in zip(cotangents, results)
    ]


def _needed(operation):
    """Which inputs of an operation need a gradient, as far as is known.

    TensorFlow's tapes know; `tf.gradients`, and a tape around a `tf.function`,
    which has a graph of its own, do not.
    """
    skipped = getattr(operation, "skip_input_indices", None) or ()
    return [index not in skipped for index in range(len(operation.inputs))]


def _of_both_cores(name):
    """Registers the gradient of a function that both cores have.

    It decorates `gradient(backward, operation, *cotangents)`, where `backward`
    is the gradient's own operation.
    """

    def register(gradient):
        function = f"keras_linrec_{{}}{name}_backward"
        words = "".join(word.title() for word in name.split("_"))
        for core in ("", "cuda_"):
            backward = getattr(_operations, function.format(core))
            tf.RegisterGradient(f"KerasLinrec{core.title()[:-1]}{words}")(
                partial(gradient, backward)
            )
        return gradient

    return register


def _nothing(gradient):
    return tf.zeros((0,), gradient.dtype)


def _differentiable(*names):
    """Registers the gradient of operations that are gradients themselves.

    It decorates `plain(operation, inputs)`, which computes the same as each
    operation, in operations that TensorFlow differentiates. An input that
    `plain` does not read is a function of the other inputs: their gradients
    include its part, and it gets none of its own.
    """

    def register(plain):
        def gradient(operation, *cotangents):
            return pull_back(
                partial(plain, operation),
                operation.inputs,
                _filled(cotangents, operation.outputs),
                unconnected="none",
            )

        for name in names:
            tf.RegisterGradient(name)(gradient)
        return plain

    return register


def _flatten(quantities):
    return [part for parts in quantities for part in parts]


# Whether each argument of an operation has parts: one (real) or two (complex).
_SCAN = (True, True, False, True)
_SCAN_BACKWARD = (*_SCAN, True, True)
_PROJECTED_SCAN = (True, False, True, True, False, True)
_PROJECTED_SCAN_BACKWARD = (*_PROJECTED_SCAN[:5], False, False, True, True)


@_of_both_cores("scan")
def _scan_gradient(backward, operation, *cotangents):
    parts = operation.get_attr("parts")
    decay, _, (resets,), initial_state = _cut(operation.inputs, _SCAN, parts)
    outputs, _ = _cut(operation.outputs, _SCAN[:2], parts)
    cotangents = _filled(cotangents, operation.outputs)
    d_decay, d_inputs, d_initial_state = backward(
        decay,
        outputs,
        resets,
        initial_state,
        *_cut(cotangents, _SCAN[:2], parts),
        reverse=operation.get_attr("reverse"),
    )
    return [*d_decay, *d_inputs, None, *d_initial_state]


@_differentiable("KerasLinrecScanBackward", "KerasLinrecCudaScanBackward")
def _plain_scan_gradient(operation, tensors):
    decay, outputs, (resets,), initial_state, d_outputs, d_final_state = _cut(
        tensors, _SCAN_BACKWARD, operation.get_attr("parts")
    )
    gradients = adjoint(
        lambda *call: scan(*call)[0],
        decay,
        outputs,
        initial_state,
        d_outputs,
        operation.get_attr("reverse"),
        d_final_state,
        or_none(resets),
    )
    return _flatten(gradients)


@tf.RegisterGradient("KerasLinrecProjectedScan")
def _projected_gradient(operation, *cotangents):
    parts = operation.get_attr("parts")
    decay, (inputs,), *kernels, (resets,), initial_state = _cut(
        operation.inputs, _PROJECTED_SCAN, parts
    )
    # The checkpoints are read by the gradient alone, so they have no cotangent.
    *results, checkpoints = operation.outputs
    d_outputs, *d_final_state = _filled(cotangents[:-1], results)
    gradients = _operations.keras_linrec_projected_scan_backward(
        decay,
        inputs,
        *kernels,
        resets,
        checkpoints,
        d_outputs,
        d_final_state,
        initial_state,
        reverse=operation.get_attr("reverse"),
        block=operation.get_attr("block"),
    )
    d_decay, d_inputs, *d_kernels, d_initial_state = gradients
    return [
        *d_decay,
        d_inputs,
        *_flatten(d_kernels),
        None,
        *d_initial_state,
    ]


@_differentiable("KerasLinrecProjectedScanBackward")
def _plain_projected_gradient(operation, tensors):
    parts = operation.get_attr("parts")
    *operands, (resets,), _, d_outputs, d_final_state, initial_state = _cut(
        tensors, _PROJECTED_SCAN_BACKWARD, parts
    )

    def plain(tensors):
        decay, (inputs,), *rest = _cut(
            tensors, (True, False, True, True, True), parts
        )
        outputs, final_state = projection.projected_scan(
            scan,
            decay,
            inputs,
            *rest,
            operation.get_attr("reverse"),
            or_none(resets),
        )
        return [outputs, *final_state]

    arguments = _flatten([*operands, initial_state])
    return pull_back(plain, arguments, [*d_outputs, *d_final_state])


@_of_both_cores("impulse_response")
def _impulse_response_gradient(backward, operation, d_response):
    wanted = response_gradients(_needed(operation))
    gradients = backward(
        *operation.inputs,
        d_response,
        time=operation.get_attr("time"),
        alpha=operation.get_attr("alpha"),
        wanted=wanted,
    )
    return replace_unwanted(gradients, wanted, lambda _: None)


@_differentiable(
    "KerasLinrecImpulseResponseBackward",
    "KerasLinrecCudaImpulseResponseBackward",
)
def _plain_response_gradient(operation, tensors):
    *arguments, d_response = tensors
    time = operation.get_attr("time")
    alpha = number_of(operation.get_attr("alpha"))

    def response(arguments):
        return plain.impulse_response(scan, *arguments, time, alpha)

    gradients = pull_back(response, arguments, d_response)
    return replace_unwanted(gradients, operation.get_attr("wanted"), _nothing)


@tf.RegisterGradient("KerasLinrecVaryingResponse")
def _varying_gradient(operation, *cotangents):
    # The checkpoints are read by the gradient alone, so they have no cotangent.
    *results, checkpoints = operation.outputs
    *gradients, d_inputs, d_state = (
        _operations.keras_linrec_varying_response_backward(
            *operation.inputs,
            checkpoints,
            *_filled(cotangents[:-1], results),
            block=operation.get_attr("block"),
            alpha=operation.get_attr("alpha"),
        )
    )
    of_resets = None
    return *gradients, of_resets, d_inputs, d_state


@_differentiable("KerasLinrecVaryingResponseBackward")
def _plain_varying_gradient(operation, tensors):
    *arguments, _, d_outputs, d_final_state = tensors
    alpha = number_of(operation.get_attr("alpha"))

    def response(arguments):
        return varying.varying_response(scan, *arguments, alpha)

    gradients = pull_back(response, arguments, [d_outputs, d_final_state])
    *gradients, _, d_inputs, d_state = gradients
    return *gradients, d_inputs, d_state


@tf.RegisterGradient("KerasLinrecCarriedResponse")
def _carried_gradient(operation, *cotangents):
    *gradients, d_inputs, d_state = (
        _operations.keras_linrec_carried_response_backward(
            *operation.inputs,
            *_filled(cotangents, operation.outputs),
            alpha=operation.get_attr("alpha"),
        )
    )
    of_lengths = of_resets = None
    return *gradients, of_lengths, of_resets, d_inputs, d_state


@_differentiable("KerasLinrecCarriedResponseBackward")
def _plain_carried_gradient(operation, tensors):
    *arguments, d_outputs, d_final_state = tensors
    alpha = number_of(operation.get_attr("alpha"))

    def response(arguments):
        return carried.carried_response(varying_response, *arguments, alpha)

    gradients = pull_back(response, arguments, [d_outputs, d_final_state])
    *gradients, _, _, d_inputs, d_state = gradients
    return *gradients, d_inputs, d_state


@tf.RegisterGradient("KerasLinrecCausalConvolution")
def _convolution_gradient(operation, d_outputs):
    wanted = _needed(operation)
    gradients = _operations.keras_linrec_causal_convolution_backward(
        *operation.inputs,
        d_outputs,
        flags=operation.get_attr("flags"),
        leak=operation.get_attr("leak"),
        wanted=wanted,
    )
    return replace_unwanted(gradients, wanted, lambda _: None)


@_differentiable("KerasLinrecCausalConvolutionBackward")
def _plain_convolution_gradient(operation, tensors):
    *arguments, d_outputs = tensors
    activation = activation_of(
        operation.get_attr("flags"), number_of(operation.get_attr("leak"))
    )

    def plain(arguments):
        return convolution.causal_convolution(*arguments, activation)

    gradients = pull_back(plain, arguments, d_outputs)
    return replace_unwanted(gradients, operation.get_attr("wanted"), _nothing)


@tf.RegisterGradient("KerasLinrecMoveSteps")
def _move_gradient(operation, d_moved):
    d_sequences = _operations.keras_linrec_move_steps(
        d_moved,
        operation.inputs[1],
        flags=transposed_move(operation.get_attr("flags")),
    )
    return d_sequences, None


@tf.RegisterGradient("KerasLinrecNonlinearScan")
def _nonlinear_gradient(operation, d_outputs, d_final_state):
    outputs, final_state = operation.outputs
    if d_outputs is None:
        d_outputs = outputs[:, :0]
    if d_final_state is None:
        d_final_state = tf.zeros_like(final_state)
    return _operations.keras_linrec_nonlinear_scan_backward(
        *operation.inputs,
        outputs,
        d_outputs,
        d_final_state,
        flags=operation.get_attr("flags"),
        leak=operation.get_attr("leak"),
    )


@_differentiable("KerasLinrecNonlinearScanBackward")
def _plain_nonlinear_gradient(operation, tensors):
    *operands, _, d_outputs, d_final_state = tensors
    dynamics = dynamics_of(
        operation.get_attr("flags"), number_of(operation.get_attr("leak"))
    )
    kept = tf.shape(d_outputs)[1]

    def states(operands):
        outputs, final_state = nonlinear_recurrence.with_last_state(
            loop, dynamics, nonlinear_recurrence.Operands(*operands)
        )
        return [outputs[:, :kept], final_state]

    return pull_back(states, operands, [d_outputs, d_final_state])
