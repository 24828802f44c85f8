"""Projected scans, a section of time after the other: `kernels/sections.py`."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.operations import projected_scan as plain
from keras_linrec.kernels.resets import are_given
from keras_linrec.kernels.resets import or_empty
from keras_linrec.kernels.resets import or_none
from keras_linrec.kernels.sections import section_length


def by_sections(
    scan,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """See `keras_linrec.kernels.operations.projected_scan`."""
    batch, time, _ = inputs.shape
    channels = len(decay) * decay[0].shape[-1]
    length = section_length(batch, time, channels, inputs.dtype.itemsize)
    if length >= time:
        return plain.projected_scan(
            scan,
            decay,
            inputs,
            input_kernel,
            output_kernel,
            initial_state,
            reverse,
            resets,
        )
    outputs, final_state, _ = _by_sections(
        scan,
        bool(reverse),
        length,
        tuple(decay),
        inputs,
        tuple(input_kernel),
        tuple(output_kernel),
        or_empty(resets, inputs),
        tuple(initial_state),
    )
    return outputs, final_state


def _section(scan, reverse, resets, *operands):
    """The scan of one section, as a function of what has a gradient."""
    resets = or_none(resets)
    return plain.projected_scan(scan, *operands, reverse, resets)


def _for_each_section(length, time, reverse, body, carry, backwards=False):
    """`carry = body(index, first step, carry, length)`, in the scan's order.

    A last section of fewer steps has a program of its own.
    """
    count, rest = divmod(time, length)

    def one(index, carry):
        index = count - 1 - index if backwards else index
        first = time - (index + 1) * length if reverse else index * length
        return body(index, first, carry, length)

    def last(carry):
        first = 0 if reverse else count * length
        return body(count, first, carry, rest) if rest else carry

    if backwards:
        return lax.fori_loop(0, count, one, last(carry))
    return last(lax.fori_loop(0, count, one, carry))


def _cut(first, length, decay, inputs, resets):
    """The section's part of what varies over time."""

    def cut(array):
        return lax.dynamic_slice_in_dim(array, first, length, axis=1)

    if decay[0].ndim == 3:
        decay = tuple(map(cut, decay))
    return decay, cut(inputs), cut(resets) if are_given(resets) else resets


def _put(whole, part, first):
    return lax.dynamic_update_slice_in_dim(whole, part, first, axis=1)


def _forward(
    scan, reverse, length, decay, inputs, into, out, resets, initial_state
):
    """Outputs, final state, and the state that enters each section."""
    batch, time, _ = inputs.shape
    count = -(-time // length)
    outputs = jnp.zeros((batch, time, out[0].shape[1]), inputs.dtype)
    entering = tuple(
        jnp.zeros((count, *part.shape), part.dtype) for part in initial_state
    )

    def body(index, first, carry, length):
        outputs, entering, state = carry
        entering = tuple(
            whole.at[index].set(part) for whole, part in zip(entering, state)
        )
        decays, given, drops = _cut(first, length, decay, inputs, resets)
        results, state = _section(
            scan, reverse, drops, decays, given, into, out, state
        )
        return _put(outputs, results, first), entering, tuple(state)

    outputs, entering, final_state = _for_each_section(
        length, time, reverse, body, (outputs, entering, initial_state)
    )
    return outputs, final_state, entering


def _remember(*given):
    results = _by_sections(*given)
    return results, (given[3:], results[-1])


def _backward(scan, reverse, length, kept, cotangents):
    (decay, inputs, into, out, resets, initial_state), entering = kept
    d_outputs, d_final_state = cotangents
    per_step = decay[0].ndim == 3
    zeros = jax.tree.map(jnp.zeros_like, (decay, inputs, into, out))

    def body(index, first, carry, length):
        (d_decay, d_inputs, *d_kernels), d_state = carry
        decays, given, drops = _cut(first, length, decay, inputs, resets)
        state = tuple(part[index] for part in entering)
        _, pull_back = jax.vjp(
            partial(_section, scan, reverse, drops),
            *(decays, given, into, out, state),
        )
        d_results = lax.dynamic_slice_in_dim(d_outputs, first, length, axis=1)
        slopes, d_given, *others, d_state = pull_back((d_results, d_state))
        if per_step:
            d_decay = tuple(
                _put(whole, part, first) for whole, part in zip(d_decay, slopes)
            )
        else:
            d_decay = jax.tree.map(jnp.add, d_decay, slopes)
        d_kernels = jax.tree.map(jnp.add, d_kernels, others)
        return (d_decay, _put(d_inputs, d_given, first), *d_kernels), d_state

    gradients, d_initial_state = _for_each_section(
        length,
        inputs.shape[1],
        reverse,
        body,
        (zeros, tuple(d_final_state)),
        backwards=True,
    )
    return *gradients, None, d_initial_state


def _plain_backward(scan, reverse, _, kept, cotangents):
    (*operands, resets, initial_state), _ = kept

    plain = partial(_section, scan, reverse, resets)
    _, pull_back = jax.vjp(plain, *operands, initial_state)
    *gradients, d_initial_state = pull_back(tuple(cotangents))
    return *gradients, None, d_initial_state


_by_sections = twice_differentiable(
    _forward,
    _remember,
    _backward,
    _plain_backward,
    settings=3,
    # Only the gradient reads the states that enter sections.
    differentiated=2,
)
