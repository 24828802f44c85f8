import math
from functools import partial

import torch

from keras_linrec.complex_pairs import carried
from keras_linrec.complex_pairs import carried_add
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.kernels.exporting import exporting
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.resets import unused_at


def sequential(decay, inputs, initial_state, reverse=False, resets=None):
    """One step after another."""
    return _run(_loop, decay, inputs, initial_state, reverse, resets)


def associative(decay, inputs, initial_state, reverse=False, resets=None):
    """Parallel in time: blocks of about sqrt(time) steps, all at once."""
    return _run(_blocks, decay, inputs, initial_state, reverse, resets)


def _run(algorithm, decay, inputs, initial_state, reverse, resets=None):
    decay = unused_at(resets, decay)
    if not isinstance(inputs[0].shape[1], int):
        # A symbol, while exporting; no gradients are needed there.
        return _any_length(decay, inputs, initial_state, reverse, resets)
    return _Scan.apply(
        algorithm, reverse, resets, *decay, *inputs, *initial_state
    )


def _thirds(tensors):
    size = len(tensors) // 3
    return tensors[:size], tensors[size : 2 * size], tensors[2 * size :]


class _Scan(torch.autograd.Function):
    # Autograd would store every intermediate of the blocks; the adjoint stores
    # the outputs alone.
    generate_vmap_rule = True

    @staticmethod
    def forward(algorithm, reverse, resets, *tensors):
        return algorithm(*_thirds(tensors), reverse, resets)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.algorithm, ctx.reverse, resets, *tensors = inputs
        decay, _, initial_state = _thirds(tensors)
        ctx.save_for_backward(resets, *decay, *output, *initial_state)

    @staticmethod
    def backward(ctx, *cotangents):
        resets, *kept = ctx.saved_tensors
        gradients = adjoint(
            partial(_run, ctx.algorithm),
            *_thirds(kept),
            cotangents,
            ctx.reverse,
            resets=resets,
        )
        return *[None] * 3, *(part for parts in gradients for part in parts)


def _dropped(state, resets):
    return tuple(torch.where(resets != 0, 0.0, part) for part in state)


def _order(count, reverse):
    return range(count - 1, -1, -1) if reverse else range(count)


def _unbind(parts, dim):
    # Once, outside the loop: with indexing inside it, the gradient would read
    # and write the whole tensor at each step.
    return list(zip(*(part.unbind(dim) for part in parts)))


def _loop(decay, inputs, initial_state, reverse, resets):
    steps = _unbind(inputs, 1)
    decays = None if decay[0].ndim == 1 else _unbind(decay, 1)
    marks = None if resets is None else resets[:, :, None].unbind(1)
    outputs = [None] * len(steps)
    state = initial_state
    for step in _order(len(steps), reverse):
        if marks:
            state = _dropped(state, marks[step])
        decay_now = decays[step] if decays else decay
        state = multiply_add(decay_now, state, steps[step])
        outputs[step] = state
    return tuple(torch.stack(part, dim=1) for part in zip(*outputs))


def _blocks(decay, inputs, initial_state, reverse, resets):
    """Scan all blocks from zero at once, then propagate the carries.

    The state at step i of a block is the block's scan from zero, plus the
    product of the decays up to i times the state that entered the block, unless
    a reset lies between. What passes from block to block is float64: a decay of
    1 - 1e-6 remembers a million steps, and every rounding of their products.
    """
    if inputs[0].numel() == 0:
        return tuple(part.clone() for part in inputs)
    batch, time, channels = inputs[0].shape
    size = 2 ** round(math.log2(time) / 2)
    count = -(-time // size)

    def in_blocks(parts):
        # Padding goes to the end of the scan, so that no state passes it.
        padding = count * size - time
        where = (0, 0, padding, 0) if reverse else (0, 0, 0, padding)
        return tuple(
            torch.nn.functional.pad(part, where).reshape(
                batch, count, size, part.shape[2]
            )
            for part in parts
        )

    # A row that depends on all arguments: under `torch.vmap` a buffer has to be
    # batched if any argument is.
    seeds = [
        part[0, 0] + rate.reshape(-1, channels)[0] + state[0]
        for part, rate, state in zip(inputs, decay, initial_state)
    ]

    steps = _unbind(in_blocks(inputs), 2)
    outputs = _outputs(seeds, (batch, count, size, channels))
    if decay[0].ndim == 1:
        decays = [decay] * size
    else:
        decays = _unbind(in_blocks(decay), 2)
    products = [None] * size

    stops = None
    if resets is not None:
        # The number of resets up to each step of a block.
        (marks,) = in_blocks((resets[:, :, None],))
        stops = marks.flip(2).cumsum(2).flip(2) if reverse else marks.cumsum(2)

    state = product = None
    for step in _order(size, reverse):
        if state is None:
            state = _from_zero(decays[step], steps[step])
            product = _wide(decays[step])
        else:
            if resets is not None:
                state = _dropped(state, marks[:, :, step])
            state = multiply_add(decays[step], state, steps[step])
            product = multiply(_wide(decays[step]), product)
        outputs.set(step, state)
        products[step] = product

    last = 0 if reverse else -1
    blocks_stop = None if stops is None else stops[:, :, last]
    entering = _carries(
        product, _wide(state), _wide(initial_state), reverse, blocks_stop
    )
    for step in range(size):
        reaching = entering
        if stops is not None:
            reaching = _dropped(entering, stops[:, :, step])
        # In float64, as long as products may overflow float32.
        arriving = carried(products[step], reaching, torch.where)
        outputs.add(step, arriving)
    kept = slice(count * size - time, None) if reverse else slice(time)
    return tuple(
        part.reshape(batch, count * size, channels)[:, kept]
        for part in outputs.whole()
    )


def _outputs(seeds, shape):
    """What `_blocks` keeps of its steps, in a form for where it runs."""
    if exporting():
        return _Stacked(shape[2])
    return _Written(tuple(seed.new_empty(shape) for seed in seeds))


class _Written:
    """The outputs of every step, each written to its place at once."""

    def __init__(self, buffers):
        self._buffers = buffers

    def set(self, step, parts):
        for buffer, part in zip(self._buffers, parts):
            buffer[:, :, step] = part

    def add(self, step, parts):
        for buffer, part in zip(self._buffers, parts):
            buffer[:, :, step] += part

    def whole(self):
        return self._buffers


class _Stacked:
    """The same in a file, where every write would copy the whole.

    ONNX has no other than `ScatterElements` for it.
    """

    def __init__(self, count):
        self._steps = [None] * count

    def set(self, step, parts):
        self._steps[step] = parts

    def add(self, step, parts):
        # Rounded once, as in a buffer.
        self._steps[step] = tuple(
            (kept + part).to(kept.dtype)
            for kept, part in zip(self._steps[step], parts)
        )

    def whole(self):
        return tuple(torch.stack(part, dim=2) for part in zip(*self._steps))


def _from_zero(decay, now):
    """The state after a step from zero: NaN if the decay is not finite."""
    return multiply_add(decay, tuple(map(torch.zeros_like, now)), now)


def _wide(parts):
    """The parts in float64, unless their device has none."""
    if parts[0].device.type == "mps":
        return parts
    return tuple(part.double() for part in parts)


def _carries(product, last, initial_state, reverse, stops):
    """The state that enters each block, (batch, count, channels)."""
    lasts = _unbind(last, 1)
    varying = product[0].ndim == 3
    products = _unbind(product, 1) if varying else [product] * len(lasts)
    entering = [None] * len(lasts)
    state = initial_state
    for block in _order(len(lasts), reverse):
        entering[block] = state
        if stops is not None:
            state = _dropped(state, stops[:, block])
        state = carried_add(products[block], state, lasts[block], torch.where)
    return tuple(torch.stack(part, dim=1) for part in zip(*entering))


# For symbolic lengths: how often the steps of a block double, and how often the
# number of joined blocks does, which covers 4 million steps.
_DOUBLINGS_IN_BLOCK = 6
_DOUBLINGS = 16
_BLOCK = 2**_DOUBLINGS_IN_BLOCK


def _any_length(decay, inputs, initial_state, reverse, resets):
    """As `_blocks`, but with operations that do not depend on the length.

    Blocks have a fixed length. Within them and between them, states are found
    by repeatedly joining twice as many: in a file, which takes longer to write
    the more operations it has, few and large ones.
    """
    if reverse:
        decay = tuple(p if p.ndim == 1 else p.flip(1) for p in decay)
        inputs = tuple(part.flip(1) for part in inputs)
        resets = None if resets is None else resets.flip(1)
        outputs = _any_length(decay, inputs, initial_state, False, resets)
        return tuple(part.flip(1) for part in outputs)
    time = inputs[0].shape[1]
    # At least two after dropping one: the exporter would treat a size of one as
    # fixed.
    count = time // _BLOCK + 3

    def in_blocks(parts):
        padding = (0, 0, 0, count * _BLOCK - time)
        return tuple(
            torch.nn.functional.pad(part, padding).unflatten(1, (count, _BLOCK))
            for part in parts
        )

    if decay[0].ndim == 1:
        decay = tuple(part.expand(_BLOCK, -1) for part in decay)
    else:
        decay = in_blocks(decay)
    stops = None
    if resets is not None:
        (stops,) = in_blocks((resets[:, :, None],))
    states, products, stops = _joined(
        _wide(decay),
        _from_zero(decay, in_blocks(inputs)),
        stops,
        _DOUBLINGS_IN_BLOCK,
    )
    entering = _entering(products, states, initial_state, count, stops)
    reaching = tuple(part[:, :, None].to(states[0].dtype) for part in entering)
    if stops is not None:
        reaching = _dropped(reaching, stops)
    products = tuple(part.to(states[0].dtype) for part in products)
    outputs = carried_add(products, reaching, states, torch.where)
    kept = torch.arange(time, device=inputs[0].device)
    return tuple(part.flatten(1, 2).index_select(1, kept) for part in outputs)


def _entering(products, states, initial_state, count, stops):
    """The state that enters each block, (batch, count, channels)."""
    last = tuple(part[..., -1, :] for part in products)
    if last[0].ndim == 1:
        factors = tuple(part.expand(count, -1) for part in last)
    else:
        factors = tuple(
            torch.cat([torch.ones_like(part[:, :1]), part[:, :-1]], dim=1)
            for part in last
        )
    sums = tuple(
        torch.cat([first[:, None], part[:, :-1, -1]], dim=1)
        for first, part in zip(_wide(initial_state), _wide(states))
    )
    if stops is not None:
        stops = stops[:, :, -1]
        stops = torch.cat([torch.zeros_like(stops[:, :1]), stops[:, :-1]], 1)
    return _joined(factors, sums, stops, _DOUBLINGS)[0]


def _joined(products, sums, stops, doublings):
    """The states of all steps, from products and sums of each, by doubling.

    Args:
        products: factors of the state before a step, (..., steps, channels).
        sums: what a step adds.
        stops: not 0 where the state before a step is dropped, or `None`.
        doublings: how often the number of joined steps doubles.

    Returns:
        `(sums, products, stops)` from the first step up to each.
    """
    place = torch.arange(sums[0].shape[-2], device=sums[0].device)
    for doubling in range(doublings):
        earlier = place - 2**doubling
        exists = (earlier >= 0)[:, None]
        earlier = earlier.clamp(min=0)

        def shifted(parts, earlier=earlier):
            return tuple(part.index_select(-2, earlier) for part in parts)

        before = shifted(sums)
        if stops is not None:
            before = _dropped(before, stops)
            later = torch.maximum(stops, *shifted((stops,)))
            stops = torch.where(exists, later, stops)
        factors = tuple(part.to(sums[0].dtype) for part in products)
        joining = carried(factors, before, torch.where)
        sums = tuple(
            part + torch.where(exists, new, 0.0)
            for part, new in zip(sums, joining)
        )
        squared = multiply(products, shifted(products))
        products = tuple(
            torch.where(exists, new, part)
            for new, part in zip(squared, products)
        )
    return sums, products, stops
