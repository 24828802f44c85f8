import math

import torch

from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.arithmetic import multiply
from keras_linrec.kernels.arithmetic import multiply_add


def sequential(decay, inputs, initial_state, reverse=False):
    """One step after another."""
    return _run(_loop, decay, inputs, initial_state, reverse)


def associative(decay, inputs, initial_state, reverse=False):
    """Parallel in time: blocks of about sqrt(time) steps, all at once."""
    return _run(_blocks, decay, inputs, initial_state, reverse)


def _run(algorithm, decay, inputs, initial_state, reverse):
    return _Scan.apply(algorithm, reverse, *decay, *inputs, *initial_state)


def _thirds(tensors):
    size = len(tensors) // 3
    return tensors[:size], tensors[size : 2 * size], tensors[2 * size :]


class _Scan(torch.autograd.Function):
    # Autograd would keep every intermediate of the blocks; the adjoint keeps
    # the outputs alone.
    generate_vmap_rule = True

    @staticmethod
    def forward(algorithm, reverse, *tensors):
        return algorithm(*_thirds(tensors), reverse)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.algorithm, ctx.reverse, *tensors = inputs
        decay, _, initial_state = _thirds(tensors)
        ctx.save_for_backward(*decay, *output, *initial_state)

    @staticmethod
    def backward(ctx, *cotangents):
        def scan(decay, inputs, initial_state, reverse):
            return _run(ctx.algorithm, decay, inputs, initial_state, reverse)

        gradients = adjoint(
            scan, *_thirds(ctx.saved_tensors), cotangents, ctx.reverse
        )
        return None, None, *(part for parts in gradients for part in parts)


def _order(count, reverse):
    return range(count - 1, -1, -1) if reverse else range(count)


def _unbind(parts, dim):
    # Once, outside the loop: indexing a tensor by time inside it costs a full
    # tensor's memory traffic a step as soon as gradients flow.
    return list(zip(*(part.unbind(dim) for part in parts)))


def _loop(decay, inputs, initial_state, reverse):
    steps = _unbind(inputs, 1)
    decays = None if decay[0].ndim == 1 else _unbind(decay, 1)
    outputs = [None] * len(steps)
    state = initial_state
    for step in _order(len(steps), reverse):
        decay_now = decays[step] if decays else decay
        state = multiply_add(decay_now, state, steps[step])
        outputs[step] = state
    return tuple(torch.stack(part, dim=1) for part in zip(*outputs))


def _blocks(decay, inputs, initial_state, reverse):
    """Scan every block from zero at once, then hand the carries along.

    The state at step i of a block is its own scan from zero, plus the product
    of the decays up to i times the state that entered the block.
    """
    batch, time, channels = inputs[0].shape
    size = 2 ** round(math.log2(time) / 2)
    count = -(-time // size)

    def in_blocks(parts):
        # Padding goes where the scan ends, so that no state passes it.
        padding = count * size - time
        where = (0, 0, padding, 0) if reverse else (0, 0, 0, padding)
        return tuple(
            torch.nn.functional.pad(part, where).reshape(
                batch, count, size, channels
            )
            for part in parts
        )

    # A row of everything: under `torch.vmap` a buffer has to be batched where
    # any of the arguments is.
    seeds = [
        part[0, 0] + rate.reshape(-1, channels)[0] + state[0]
        for part, rate, state in zip(inputs, decay, initial_state)
    ]

    def buffers(shape):
        return tuple(seed.new_empty(shape) for seed in seeds)

    steps = _unbind(in_blocks(inputs), 2)
    outputs = buffers((batch, count, size, channels))
    if decay[0].ndim == 1:
        decays = [decay] * size
        products = buffers((size, channels))
    else:
        decays = _unbind(in_blocks(decay), 2)
        products = buffers((batch, count, size, channels))

    state = product = None
    for step in _order(size, reverse):
        if state is None:
            state, product = steps[step], decays[step]
        else:
            state = multiply_add(decays[step], state, steps[step])
            product = multiply(decays[step], product)
        for part, new in zip(outputs, state):
            part[:, :, step] = new
        for part, new in zip(products, product):
            part[..., step, :] = new

    entering = _carries(product, state, initial_state, reverse)
    for part, new in zip(outputs, multiply(products, entering)):
        part += new
    kept = slice(count * size - time, None) if reverse else slice(time)
    return tuple(
        part.reshape(batch, count * size, channels)[:, kept] for part in outputs
    )


def _carries(product, last, initial_state, reverse):
    """The state that enters each block, (batch, count, 1, channels)."""
    lasts = _unbind(last, 1)
    varying = product[0].ndim == 3
    products = _unbind(product, 1) if varying else [product] * len(lasts)
    entering = [None] * len(lasts)
    state = initial_state
    for block in _order(len(lasts), reverse):
        entering[block] = state
        state = multiply_add(products[block], state, lasts[block])
    return tuple(
        torch.stack(part, dim=1)[:, :, None] for part in zip(*entering)
    )
