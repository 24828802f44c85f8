"""Causal convolutions and moves of steps, by the C++ core on JAX."""

from functools import partial

import jax

from keras_linrec.kernels.jax import plain_gradients
from keras_linrec.kernels.jax.core_calls import call
from keras_linrec.kernels.jax.core_calls import like
from keras_linrec.kernels.jax.core_calls import like_wanted
from keras_linrec.kernels.jax.core_calls import require_call_shapes
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.native.call_encoding import TO_PLACES
from keras_linrec.kernels.native.call_encoding import WITH_MASKED
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.call_encoding import bits_of
from keras_linrec.kernels.native.call_encoding import move_flags
from keras_linrec.kernels.native.call_encoding import transposed_move
from keras_linrec.kernels.native.call_shapes import convolution_shapes
from keras_linrec.kernels.native.call_shapes import move_shapes


def causal_convolution(inputs, response, activation):
    """See `keras_linrec.kernels.operations.causal_convolution`."""
    require_call_shapes(
        "causal_convolution",
        ("inputs", "response"),
        (inputs, response),
        convolution_shapes(*inputs.shape, *response.shape[1:]),
    )
    return _causal_convolution(activation_flags(activation), inputs, response)


def move_steps(sequences, mask, to_places, with_masked):
    """See `keras_linrec.kernels.operations.move_steps`."""
    require_call_shapes(
        "move_steps",
        ("sequences", "mask"),
        (sequences, mask),
        move_shapes(*sequences.shape),
    )
    flags = move_flags(to_places, with_masked)
    return _move_steps(flags, sequences, mask.astype(sequences.dtype))


# The causal convolution. Its `flags` are those of the activation, and the leak.


def _convolution_forward(flags, inputs, response):
    outputs = (*inputs.shape, response.shape[1])
    return call(
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
    return call(
        "keras_linrec_causal_convolution_backward",
        like_wanted(kept, wanted),
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
    return call(
        "keras_linrec_move_steps",
        like(sequences),
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
