"""The scans of the C++ core on JAX."""

from functools import partial

import jax
import numpy as np

from keras_linrec.kernels.jax import plain_gradients
from keras_linrec.kernels.jax.core_calls import call
from keras_linrec.kernels.jax.core_calls import like
from keras_linrec.kernels.jax.core_calls import require_call_shapes
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.native.call_shapes import checkpoint_shape
from keras_linrec.kernels.native.call_shapes import operand_shapes
from keras_linrec.kernels.native.call_shapes import projected_shapes
from keras_linrec.kernels.native.call_shapes import scan_shapes
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.resets import are_given


def scan(decay, inputs, initial_state, reverse=False, resets=None):
    """Outputs and final state, both tuples."""
    decay, inputs, initial_state = map(tuple, (decay, inputs, initial_state))
    resets = _given(resets, inputs[0])
    arguments = decay, inputs, resets, initial_state
    flags = flags_of(decay, reverse, resets)
    require_call_shapes(
        "scan",
        ("decay", "inputs", "resets", "initial_state"),
        arguments,
        scan_shapes(flags, *inputs[0].shape),
    )
    return _scan(bool(reverse), *arguments)


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
    decay, *kernels, initial_state = map(
        tuple, (decay, input_kernel, output_kernel, initial_state)
    )
    resets = _given(resets, inputs)
    arguments = decay, inputs, *kernels, resets, initial_state
    channels, units = decay[0].shape[-1], output_kernel[0].shape[-1]
    sizes = *inputs.shape, channels, units
    require_call_shapes(
        "projected_scan",
        (
            "decay",
            "inputs",
            "input_kernel",
            "output_kernel",
            "resets",
            "initial_state",
        ),
        arguments,
        projected_shapes(flags_of(decay, reverse, resets), *sizes),
    )
    outputs, final_state, _ = _projected_scan(bool(reverse), *arguments)
    return outputs, final_state


def nonlinear_scan(dynamics, operands, keep_all=True):
    """See `Kernel.nonlinear_scan` in the registry."""
    flags = nonlinear_flags(dynamics, operands)
    rank, units = operands.expansion.shape
    sizes = *operands.inputs.shape, units, rank
    require_call_shapes(
        "nonlinear_scan",
        ["operands"],
        [tuple(operands)],
        [operand_shapes(flags[0], *sizes)],
    )
    return _nonlinear_scan(flags, bool(keep_all), tuple(operands))


def _given(resets, inputs):
    """The resets, or an array without entries."""
    return np.zeros((0, 0), inputs.dtype) if resets is None else resets


def _per_step(decay):
    return decay[0].ndim == 3


# The scan.


def _rows_of_scan(decay, resets):
    """Which of decay, inputs or outputs, resets and initial state have rows."""
    return _per_step(decay), True, are_given(resets), True


def _scan_forward(reverse, decay, inputs, resets, initial_state):
    return call(
        "keras_linrec_scan",
        like((inputs, initial_state)),
        (decay, inputs, resets, initial_state),
        rows=(_rows_of_scan(decay, resets), True),
        flags=flags_of(decay, reverse, resets),
    )


def _remember_scan(reverse, decay, inputs, resets, initial_state):
    results = _scan(reverse, decay, inputs, resets, initial_state)
    return results, (decay, results[0], resets, initial_state)


def _scan_backward(reverse, kept, cotangents):
    # Cotangents are intermediate results of the program and seldom read twice,
    # so those of the inputs overwrite those of the outputs. Measured at
    # (16, 4096, 256) within a larger program: 41 ms for the whole instead of
    # 51. The forward pass is faster with memory of its own, 50 ms instead of
    # 64: XLA would first copy arguments of the program into small pages, while
    # our new arrays use large ones.
    decay, _, resets, initial_state = kept
    parts = len(decay)
    d_decay, d_inputs, d_initial_state = call(
        "keras_linrec_scan_backward",
        like((decay, cotangents[0], initial_state)),
        (kept, cotangents),
        rows=(
            (_rows_of_scan(decay, resets), True),
            (_per_step(decay), True, True),
        ),
        aliases={3 * parts + 1 + part: parts + part for part in range(parts)},
        flags=flags_of(decay, reverse, resets),
    )
    return d_decay, d_inputs, None, d_initial_state


_scan = twice_differentiable(
    _scan_forward,
    _remember_scan,
    _scan_backward,
    partial(plain_gradients.of_scan, scan),
)


# The projected scan.


def _rows_of_operands(decay, resets):
    """Which operands of a projected scan have rows."""
    return _per_step(decay), True, False, False, are_given(resets), True


def _projected_forward(
    reverse, decay, inputs, input_kernel, output_kernel, resets, initial_state
):
    """Outputs, final state, and the checkpoints that the gradient needs."""
    batch, time, _ = inputs.shape
    flags = flags_of(decay, reverse, resets)
    channels = decay[0].shape[-1]
    block = block_length(len(decay) * channels)
    checkpoints = checkpoint_shape(flags, batch, time, channels, block)
    outputs = (batch, time, output_kernel[0].shape[1])
    return call(
        "keras_linrec_projected_scan",
        (
            jax.ShapeDtypeStruct(outputs, inputs.dtype),
            like(initial_state),
            jax.ShapeDtypeStruct(checkpoints, inputs.dtype),
        ),
        (decay, inputs, input_kernel, output_kernel, resets, initial_state),
        rows=(_rows_of_operands(decay, resets), True),
        flags=flags,
        block=block,
    )


def _remember_projected(reverse, *arguments):
    results = _projected_scan(reverse, *arguments)
    return results, (arguments, results[-1])


def _projected_backward(reverse, kept, cotangents):
    arguments, checkpoints = kept
    *operands, initial_state = arguments
    decay, *others, resets = operands
    *rows, _ = _rows_of_operands(decay, resets)
    *gradients, d_initial_state = call(
        "keras_linrec_projected_scan_backward",
        like((decay, *others, initial_state)),
        (operands, checkpoints, cotangents),
        rows=((rows, True, True), (*rows[:-1], True)),
        flags=flags_of(decay, reverse, resets),
        block=block_length(len(decay) * decay[0].shape[-1]),
    )
    return *gradients, None, d_initial_state


def _plain_projected_backward(reverse, kept, cotangents):
    arguments, _ = kept
    return plain_gradients.of_projected_scan(
        scan, reverse, arguments, cotangents
    )


_projected_scan = twice_differentiable(
    _projected_forward,
    _remember_projected,
    _projected_backward,
    _plain_projected_backward,
    # Only the gradient reads the checkpoints.
    differentiated=2,
)


# The nonlinear scan. Its `flags` are those of the core, and the leak.


def _rows_of_nonlinear(operands):
    """Which operands have rows, those of the batch."""
    operands = Operands(*operands)
    steps = operands.step_size.shape != (1, 1)
    return True, *[False] * 4, steps, False, are_given(operands.resets), True


def _nonlinear_forward(flags, keep_all, operands):
    inputs, initial_state = operands[0], operands[-1]
    batch, time, _ = inputs.shape
    outputs = (batch, keep_all * time, initial_state.shape[1])
    return call(
        "keras_linrec_nonlinear_scan",
        (jax.ShapeDtypeStruct(outputs, inputs.dtype), like(initial_state)),
        operands,
        rows=(_rows_of_nonlinear(operands), True),
        flags=flags[0],
        leak=bits_of(flags[1]),
    )


def _remember_nonlinear(flags, keep_all, operands):
    outputs, final_state = _nonlinear_scan(flags, True, operands)
    given = outputs if keep_all else outputs[:, :0]
    return (given, final_state), (operands, outputs)


def _nonlinear_backward(flags, _, kept, cotangents):
    operands, outputs = kept
    rows = _rows_of_nonlinear(operands)
    gradients = call(
        "keras_linrec_nonlinear_scan_backward",
        like(operands),
        (operands, outputs, cotangents),
        rows=((rows, True, True), rows),
        flags=flags[0],
        leak=bits_of(flags[1]),
    )
    return (gradients,)


def _plain_nonlinear_backward(flags, _, kept, cotangents):
    operands, _ = kept
    gradients = plain_gradients.of_nonlinear_scan(
        dynamics_of(*flags), operands, cotangents
    )
    return (gradients,)


_nonlinear_scan = twice_differentiable(
    _nonlinear_forward,
    _remember_nonlinear,
    _nonlinear_backward,
    _plain_nonlinear_backward,
    settings=2,
)
