"""The C++ core on JAX, as XLA FFI calls.

Importing this module builds and loads the library.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from keras_linrec.kernels.jax import plain_gradients
from keras_linrec.kernels.jax import portable_calls
from keras_linrec.kernels.jax.batch_partitioning import by_rows
from keras_linrec.kernels.jax.lowering import native_or_portable
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native import varying_block
from keras_linrec.kernels.native.call_encoding import TO_PLACES
from keras_linrec.kernels.native.call_encoding import WITH_MASKED
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.call_encoding import move_flags
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.native.call_encoding import response_gradients
from keras_linrec.kernels.native.call_encoding import transposed_move
from keras_linrec.kernels.native.call_shapes import checkpoint_shape
from keras_linrec.kernels.native.call_shapes import convolution_shapes
from keras_linrec.kernels.native.call_shapes import final_shapes
from keras_linrec.kernels.native.call_shapes import free_shapes
from keras_linrec.kernels.native.call_shapes import move_shapes
from keras_linrec.kernels.native.call_shapes import operand_shapes
from keras_linrec.kernels.native.call_shapes import projected_shapes
from keras_linrec.kernels.native.call_shapes import require_shapes
from keras_linrec.kernels.native.call_shapes import response_shapes
from keras_linrec.kernels.native.call_shapes import scan_shapes
from keras_linrec.kernels.native.call_shapes import varying_checkpoint_shape
from keras_linrec.kernels.native.call_shapes import varying_shapes
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.resets import are_given

_library = build.load("jax")
for _name in core.FUNCTIONS:
    jax.ffi.register_ffi_target(
        _name,
        jax.ffi.pycapsule(getattr(_library, f"{_name}_xla")),
        platform="cpu",
    )


def scan(decay, inputs, initial_state, reverse=False, resets=None):
    """Outputs and final state, both tuples."""
    decay, inputs, initial_state = map(tuple, (decay, inputs, initial_state))
    resets = _given(resets, inputs[0])
    arguments = decay, inputs, resets, initial_state
    flags = flags_of(decay, reverse, resets)
    _require_shapes(
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
    _require_shapes(
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


def impulse_response(p, d, q, t, b, timescale, output_matrix, time, alpha):
    """See `keras_linrec.kernels.impulse_response`."""
    arguments = p, d, q, t, b, timescale, output_matrix
    _require_shapes(
        "impulse_response",
        ["arguments"],
        [arguments],
        [response_shapes(*output_matrix.shape)],
    )
    return _impulse_response(time, float(alpha), arguments)


def varying_response(*arguments):
    """See `keras_linrec.kernels.varying_response`."""
    *arguments, alpha = arguments
    output_matrix, inputs = arguments[6], arguments[9]
    _require_shapes(
        "varying_response",
        ["arguments"],
        [arguments],
        [varying_shapes(*inputs.shape, *output_matrix.shape[1:])],
    )
    outputs, final_state, _ = _varying_response(float(alpha), *arguments)
    return outputs, final_state


def free_response(*arguments):
    """See `keras_linrec.kernels.carried_states`."""
    *arguments, time, alpha = arguments
    output_matrix, state = arguments[-2:]
    batch, features, size = state.shape
    _require_shapes(
        "free_response",
        ["arguments"],
        [arguments],
        [free_shapes(batch, features, output_matrix.shape[1], size)],
    )
    return _free_response(time, float(alpha), *arguments)


def final_states(*arguments):
    """See `keras_linrec.kernels.carried_states`."""
    *arguments, alpha = arguments
    output_matrix, _, inputs, _ = arguments[6:]
    _require_shapes(
        "final_states",
        ["arguments"],
        [arguments],
        [final_shapes(*inputs.shape, *output_matrix.shape[1:])],
    )
    return _final_states(float(alpha), *arguments)


def causal_convolution(inputs, response, activation):
    """See `keras_linrec.kernels.causal_convolution`."""
    _require_shapes(
        "causal_convolution",
        ("inputs", "response"),
        (inputs, response),
        convolution_shapes(*inputs.shape, *response.shape[1:]),
    )
    return _causal_convolution(activation_flags(activation), inputs, response)


def move_steps(sequences, mask, to_places, with_masked):
    """See `keras_linrec.kernels.move_steps`."""
    _require_shapes(
        "move_steps",
        ("sequences", "mask"),
        (sequences, mask),
        move_shapes(*sequences.shape),
    )
    flags = move_flags(to_places, with_masked)
    return _move_steps(flags, sequences, mask.astype(sequences.dtype))


def nonlinear_scan(dynamics, operands, keep_all=True):
    """See `Kernel.nonlinear_scan` in the registry."""
    flags = nonlinear_flags(dynamics, operands)
    rank, units = operands.expansion.shape
    sizes = *operands.inputs.shape, units, rank
    _require_shapes(
        "nonlinear_scan",
        ["operands"],
        [tuple(operands)],
        [operand_shapes(flags[0], *sizes)],
    )
    return _nonlinear_scan(flags, bool(keep_all), tuple(operands))


def _given(resets, inputs):
    """The resets, or an array without entries."""
    return np.zeros((0, 0), inputs.dtype) if resets is None else resets


def _require_shapes(function, names, arguments, expected):
    # The sizes of a program that is exported may be symbols, which need not
    # compare.
    sizes = [n for part in jax.tree.leaves(arguments) for n in part.shape]
    if all(isinstance(size, int) for size in sizes):
        function = f"{__name__}.{function}"
        require_shapes(function, names, arguments, expected)


def _call(name, results, arguments, rows=None, aliases=None, **attributes):
    """Call the core on trees of arrays; `results` is a tree of shapes.

    `jax.vmap` gives all arrays leading axes, which the core treats as separate
    systems. `rows` tells which arguments and which results have the rows of a
    batch: two trees, which may be prefixes, or `None` for a call without a
    batch. `aliases` maps arguments to the results that may reuse their memory,
    by their indices in flat lists.
    """
    flat, tree = jax.tree.flatten(results)
    given, given_tree = jax.tree.flatten(arguments)
    if rows is not None:
        rows = _spread(rows[0], arguments), _spread(rows[1], results)
    attributes = tuple(sorted(attributes.items()))
    call = _CoreCall(
        name, tuple(flat), rows, tuple((aliases or {}).items()), attributes
    )
    portable = _PortableCall(name, given_tree, tuple(flat), attributes)
    outputs = native_or_portable(call, portable, flat, given)
    return jax.tree.unflatten(tree, outputs)


@dataclass(frozen=True)
class _CoreCall:
    """A call of the core on flat arrays."""

    name: str
    results: tuple
    rows: tuple | None
    aliases: tuple
    attributes: tuple

    def __call__(self, *arguments):
        if self.rows is None:
            return self._run(list(self.results), *arguments)
        return by_rows(self._run, arguments, list(self.results), self.rows)

    def _run(self, shapes, *arguments):
        return jax.ffi.ffi_call(
            self.name,
            shapes,
            vmap_method="broadcast_all",
            input_output_aliases=dict(self.aliases) or None,
        )(*arguments, **dict(self.attributes))


@dataclass(frozen=True)
class _PortableCall:
    """The same call in portable form."""

    name: str
    arguments: object
    results: tuple
    attributes: tuple

    def __call__(self, *arguments):
        outputs = portable_calls.CALLS[self.name](
            self.results,
            *jax.tree.unflatten(self.arguments, arguments),
            **dict(self.attributes),
        )
        return jax.tree.leaves(outputs)


def _spread(prefix, tree):
    """The leaves of `prefix`, repeated for each leaf of `tree` below them."""
    spread = jax.tree.map(
        lambda value, part: [value] * len(jax.tree.leaves(part)), prefix, tree
    )
    return tuple(jax.tree.leaves(spread))


def _like(arrays):
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays
    )


def _like_wanted(arrays, wanted):
    """The same, but without elements where `wanted`, a flat list, is false."""
    leaves, tree = jax.tree.flatten(arrays)
    shapes = [
        jax.ShapeDtypeStruct(a.shape if one else (0,), a.dtype)
        for a, one in zip(leaves, wanted)
    ]
    return jax.tree.unflatten(tree, shapes)


def _per_step(decay):
    return decay[0].ndim == 3


# The scan.


def _rows_of_scan(decay, resets):
    """Which of decay, inputs or outputs, resets and initial state have rows."""
    return _per_step(decay), True, are_given(resets), True


def _scan_forward(reverse, decay, inputs, resets, initial_state):
    return _call(
        "keras_linrec_scan",
        _like((inputs, initial_state)),
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
    d_decay, d_inputs, d_initial_state = _call(
        "keras_linrec_scan_backward",
        _like((decay, cotangents[0], initial_state)),
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
    return _call(
        "keras_linrec_projected_scan",
        (
            jax.ShapeDtypeStruct(outputs, inputs.dtype),
            _like(initial_state),
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
    *gradients, d_initial_state = _call(
        "keras_linrec_projected_scan_backward",
        _like((decay, *others, initial_state)),
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


# The impulse response.


def _response_forward(time, alpha, arguments):
    output_matrix = arguments[-1]
    return _call(
        "keras_linrec_impulse_response",
        jax.ShapeDtypeStruct(
            (*output_matrix.shape[:2], time), output_matrix.dtype
        ),
        arguments,
        time=time,
        alpha=bits_of(alpha),
    )


def _remember_response(time, alpha, arguments):
    return _impulse_response(time, alpha, arguments), arguments


def _response_backward(time, alpha, needed, arguments, d_response):
    gradients = _call(
        "keras_linrec_impulse_response_backward",
        _like_wanted(arguments, response_gradients(needed)),
        (arguments, d_response),
        time=time,
        alpha=bits_of(alpha),
    )
    return (gradients,)


def _plain_response_backward(time, alpha, arguments, d_response):
    gradients = plain_gradients.of_impulse_response(
        scan, time, alpha, arguments, d_response
    )
    return (gradients,)


_impulse_response = twice_differentiable(
    _response_forward,
    _remember_response,
    _response_backward,
    _plain_response_backward,
    settings=2,
    by_need=True,
)


# The response to steps that differ in length.

_ROWS_OF_VARYING = *[False] * 7, *[True] * 4
_RESETS = 8


def _without_resets(arguments):
    return *arguments[:_RESETS], *arguments[_RESETS + 1 :]


def _varying_attributes(alpha, arguments):
    inputs, state = arguments[-2:]
    block = varying_block(inputs.shape[1], state.shape[2])
    return {"block": block, "alpha": bits_of(alpha)}


def _varying_forward(alpha, *arguments):
    """Outputs, final state, and the checkpoints that the gradient needs."""
    output_matrix, inputs, state = arguments[6], *arguments[-2:]
    attributes = _varying_attributes(alpha, arguments)
    checkpoints = varying_checkpoint_shape(
        *inputs.shape, state.shape[2], attributes["block"]
    )
    outputs = *inputs.shape, output_matrix.shape[1]
    return _call(
        "keras_linrec_varying_response",
        (
            jax.ShapeDtypeStruct(outputs, inputs.dtype),
            _like(state),
            jax.ShapeDtypeStruct(checkpoints, inputs.dtype),
        ),
        arguments,
        rows=(_ROWS_OF_VARYING, True),
        **attributes,
    )


def _remember_varying(alpha, *arguments):
    results = _varying_response(alpha, *arguments)
    return results, (arguments, results[-1])


def _varying_backward(alpha, kept, cotangents):
    arguments, _ = kept
    gradients = _call(
        "keras_linrec_varying_response_backward",
        _like(_without_resets(arguments)),
        (*kept, cotangents),
        rows=(
            (_ROWS_OF_VARYING, True, True),
            _without_resets(_ROWS_OF_VARYING),
        ),
        **_varying_attributes(alpha, arguments),
    )
    no_gradient = jax.numpy.zeros_like(arguments[_RESETS])
    return *gradients[:_RESETS], no_gradient, *gradients[_RESETS:]


def _plain_varying_backward(alpha, kept, cotangents):
    arguments, _ = kept
    return plain_gradients.of_varying_response(
        scan, alpha, arguments, cotangents
    )


_varying_response = twice_differentiable(
    _varying_forward,
    _remember_varying,
    _varying_backward,
    _plain_varying_backward,
    differentiated=2,
)


# States that pass through a sequence.

_ROWS_OF_FREE = *[False] * 7, True


def _free_forward(time, alpha, *arguments):
    output_matrix, state = arguments[-2:]
    batch, features, _ = state.shape
    outputs = batch, time, features, output_matrix.shape[1]
    return _call(
        "keras_linrec_free_response",
        jax.ShapeDtypeStruct(outputs, state.dtype),
        arguments,
        rows=(_ROWS_OF_FREE, True),
        time=time,
        alpha=bits_of(alpha),
    )


def _remember_free(time, alpha, *arguments):
    return _free_response(time, alpha, *arguments), arguments


def _free_backward(time, alpha, arguments, d_outputs):
    return _call(
        "keras_linrec_free_response_backward",
        _like(arguments),
        (arguments, d_outputs),
        rows=((_ROWS_OF_FREE, True), _ROWS_OF_FREE),
        time=time,
        alpha=bits_of(alpha),
    )


def _plain_free_backward(time, alpha, arguments, d_outputs):
    return plain_gradients.of_free_response(
        varying_response, time, alpha, arguments, d_outputs
    )


_free_response = twice_differentiable(
    _free_forward,
    _remember_free,
    _free_backward,
    _plain_free_backward,
    settings=2,
)

_ROWS_OF_FINAL = *[False] * 7, *[True] * 3
_LENGTHS = 7


def _final_forward(alpha, *arguments):
    return _call(
        "keras_linrec_final_states",
        _like(arguments[-1]),
        arguments,
        rows=(_ROWS_OF_FINAL, True),
        alpha=bits_of(alpha),
    )


def _remember_final(alpha, *arguments):
    return _final_states(alpha, *arguments), arguments


def _final_backward(alpha, arguments, d_states):
    differentiated = *arguments[:_LENGTHS], *arguments[_LENGTHS + 1 :]
    *gradients, d_inputs, d_state = _call(
        "keras_linrec_final_states_backward",
        _like(differentiated),
        (arguments, d_states),
        rows=((_ROWS_OF_FINAL, True), (*_ROWS_OF_FREE, True)),
        alpha=bits_of(alpha),
    )
    of_lengths = jax.numpy.zeros_like(arguments[_LENGTHS])
    return *gradients, of_lengths, d_inputs, d_state


def _plain_final_backward(alpha, arguments, d_states):
    return plain_gradients.of_final_states(
        varying_response, alpha, arguments, d_states
    )


_final_states = twice_differentiable(
    _final_forward, _remember_final, _final_backward, _plain_final_backward
)


# The causal convolution. Its `flags` are those of the activation, and the leak.


def _convolution_forward(flags, inputs, response):
    outputs = (*inputs.shape, response.shape[1])
    return _call(
        "keras_linrec_causal_convolution",
        jax.ShapeDtypeStruct(outputs, inputs.dtype),
        (inputs, response),
        rows=((True, False), True),
        flags=flags[0],
        leak=bits_of(flags[1]),
    )


def _remember_convolution(flags, inputs, response):
    return _causal_convolution(flags, inputs, response), (inputs, response)


def _convolution_backward(flags, wanted, kept, d_outputs):
    return _call(
        "keras_linrec_causal_convolution_backward",
        _like_wanted(kept, wanted),
        (*kept, d_outputs),
        rows=((True, False, True), (wanted[0], False)),
        flags=flags[0],
        leak=bits_of(flags[1]),
    )


def _plain_convolution_backward(flags, kept, d_outputs):
    return plain_gradients.of_causal_convolution(
        activation_of(*flags), *kept, d_outputs
    )


_causal_convolution = twice_differentiable(
    _convolution_forward,
    _remember_convolution,
    _convolution_backward,
    _plain_convolution_backward,
    by_need=True,
)


# Moves of steps.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _move_steps(flags, sequences, mask):
    # In place where it is a gradient, which nothing reads twice. Other operands
    # are often needed again, or arguments of the program, and XLA would copy
    # them: a training step of LipschitzRNN(128) at (16, 2048, 64) with a mask
    # takes 1.00 of the CPU time without one, and 1.08 with all moves in place.
    aliases = {0: 0} if flags in (TO_PLACES, WITH_MASKED) else None
    return _call(
        "keras_linrec_move_steps",
        _like(sequences),
        (sequences, mask),
        rows=((True, True), True),
        aliases=aliases,
        flags=flags,
    )


def _remember_move(flags, sequences, mask):
    return _move_steps(flags, sequences, mask), mask


def _transposed_move(flags, mask, d_moved):
    return _move_steps(transposed_move(flags), d_moved, mask), None


_move_steps.defvjp(_remember_move, _transposed_move)


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
    return _call(
        "keras_linrec_nonlinear_scan",
        (jax.ShapeDtypeStruct(outputs, inputs.dtype), _like(initial_state)),
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
    gradients = _call(
        "keras_linrec_nonlinear_scan_backward",
        _like(operands),
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
