import math
from functools import partial

import tensorflow as tf

from keras_linrec.complex_pairs import carried
from keras_linrec.complex_pairs import carried_add
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.kernels.exporting import kernel_of_loops
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.resets import unused_at
from keras_linrec.kernels.tensorflow.steps_of_files import scan_steps

# Steps in a block, unrolled in the graph. At (16, 4096, 256) and
# (4, 16384, 64) blocks of 16, 32 and 64 steps run within 20% of each other;
# 32 compiles twice as fast under XLA as 64.
_BLOCK = 32


def sequential(decay, inputs, initial_state, reverse=False, resets=None):
    """One step after another, in a `tf.while_loop`."""
    return _differentiable(_loop, decay, inputs, initial_state, reverse, resets)


def associative(decay, inputs, initial_state, reverse=False, resets=None):
    """Parallel in time: blocks of 32 steps, all blocks at once."""
    return _differentiable(
        _blocks, decay, inputs, initial_state, reverse, resets
    )


def _differentiable(
    algorithm, decay, inputs, initial_state, reverse, resets=None
):
    # TensorFlow differentiates neither loop, because XLA cannot differentiate
    # one of unknown length; the adjoint is a scan itself.
    field = len(inputs)
    decay = unused_at(resets, decay)
    scan = partial(_differentiable, algorithm)

    @tf.custom_gradient
    def run(*tensors):
        decay, initial_state = tensors[:field], tensors[2 * field :]
        outputs = algorithm(
            decay, tensors[field : 2 * field], initial_state, reverse, resets
        )

        def gradient(*cotangents):
            gradients = adjoint(
                scan,
                decay,
                outputs,
                initial_state,
                cotangents,
                reverse,
                resets=resets,
                total=_total,
            )
            return [part for parts in gradients for part in parts]

        return outputs, gradient

    outputs = run(*decay, *inputs, *initial_state)
    return tuple(outputs) if field > 1 else (tf.convert_to_tensor(outputs[0]),)


def _order(count, reverse):
    return range(count - 1, -1, -1) if reverse else range(count)


def _dropped(state, resets):
    return tuple(tf.where(resets != 0, tf.zeros_like(s), s) for s in state)


def _total(sequence):
    # TensorFlow adds one step after another: in float32, the sum of 2^20 steps
    # is off by 4e-4.
    total = tf.reduce_sum(tf.cast(sequence, tf.float64), axis=(0, 1))
    return tf.cast(total, sequence.dtype)


def _cast(parts, dtype):
    return tuple(tf.cast(part, dtype) for part in parts)


def _swap_time(parts):
    return tuple(tf.transpose(part, (1, 0, 2)) for part in parts)


def _loop(decay, inputs, initial_state, reverse, resets):
    if kernel_of_loops():
        return _loop_of_a_file(decay, inputs, initial_state, reverse, resets)
    if decay[0].shape.rank == 3:
        decay = _swap_time(decay)
    _, states = _time_major_loop(
        decay, _swap_time(inputs), initial_state, reverse, resets
    )
    return _swap_time(states)


def _loop_of_a_file(decay, inputs, initial_state, reverse, resets):
    varying = decay if decay[0].shape.rank == 3 else ()
    sequences = list(_swap_time((*inputs, *varying)))
    if resets is not None:
        sequences.append(tf.transpose(resets)[:, :, None])

    def step(state, items):
        now, decays = items[: len(inputs)], items[len(inputs) :]
        if resets is not None:
            state = _dropped(state, decays.pop())
        state = multiply_add(tuple(decays) or decay, state, now)
        return state, state

    _, states = scan_steps(step, tuple(initial_state), sequences, reverse)
    return _swap_time(states)


def _time_major_loop(
    decay, inputs, initial_state, reverse, resets, step_of=multiply_add
):
    """The states before and after each step, (time, batch, channels).

    The state before a step that is reset is the one that it drops. `step_of`
    computes decay * state + input.
    """
    count = tf.shape(inputs[0])[0]
    time_invariant = decay[0].shape.rank == 1

    def array():
        return tf.TensorArray(
            inputs[0].dtype, count, element_shape=inputs[0].shape[1:]
        )

    def unstacked(parts):
        return [array().unstack(part) for part in parts]

    steps = unstacked(inputs)
    decays = None if time_invariant else unstacked(decay)
    empty = tuple(array() for _ in inputs)
    if resets is not None:
        resets = tf.transpose(resets)

    def body(index, state, before, after):
        step = count - 1 - index if reverse else index
        decay_now = (
            decay
            if time_invariant
            else tuple(part.read(step) for part in decays)
        )
        now = tuple(part.read(step) for part in steps)
        before = tuple(a.write(step, s) for a, s in zip(before, state))
        if resets is not None:
            state = _dropped(state, resets[step][:, None])
        new = step_of(decay_now, state, now)
        after = tuple(a.write(step, s) for a, s in zip(after, new))
        return index + 1, new, before, after

    _, _, before, after = tf.while_loop(
        lambda index, *_: index < count,
        body,
        (0, tuple(initial_state), empty, tuple(array() for _ in inputs)),
        maximum_iterations=count,
    )
    return (
        tuple(part.stack() for part in before),
        tuple(part.stack() for part in after),
    )


def _block_size(time):
    if time is None:
        return _BLOCK
    return min(_BLOCK, 2 ** round(math.log2(time) / 2))


def _blocks(decay, inputs, initial_state, reverse, resets):
    """Scan all blocks from zero at once, then propagate the carries.

    The state at step i of a block is the block's scan from zero, plus the
    product of the decays up to i times the state that entered the block, unless
    a reset lies between. What passes from block to block is float64: a decay of
    1 - 1e-6 remembers a million steps, and every rounding of their products.
    `torch/scan.py` has the same algorithm on buffers that it writes in place.
    """
    batch, time, _ = tf.unstack(tf.shape(inputs[0]))
    channels = inputs[0].shape[2]
    size = _block_size(inputs[0].shape[1])
    count = -(-time // size)
    padding = count * size - time

    def in_blocks(parts):
        # Padding goes to the end of the scan, so that no state passes it.
        where = [padding, 0] if reverse else [0, padding]
        padded = (tf.pad(part, [[0, 0], where, [0, 0]]) for part in parts)
        split = (
            tf.reshape(part, (batch, count, size, part.shape[2]))
            for part in padded
        )
        return list(zip(*(tf.unstack(part, axis=2) for part in split)))

    steps = in_blocks(inputs)
    varying = decay[0].shape.rank == 3
    decays = in_blocks(decay) if varying else [decay] * size
    states, products = [None] * size, [None] * size
    marks, stops = [None] * size, [None] * size
    if resets is not None:
        marks = [mark for (mark,) in in_blocks((resets[:, :, None],))]
    state = product = stop = None
    for step in _order(size, reverse):
        if state is None:
            # From zero, and NaN if the decay is not finite.
            zero = tuple(map(tf.zeros_like, steps[step]))
            state = multiply_add(decays[step], zero, steps[step])
            stop = marks[step]
            product = _cast(decays[step], tf.float64)
        else:
            if resets is not None:
                state = _dropped(state, marks[step])
                stop = tf.maximum(stop, marks[step])
            state = multiply_add(decays[step], state, steps[step])
            product = multiply(_cast(decays[step], tf.float64), product)
        states[step], stops[step] = state, stop
        products[step] = product

    entering, _ = _time_major_loop(
        _swap_time(product) if varying else product,
        _cast(_swap_time(state), tf.float64),
        _cast(initial_state, tf.float64),
        reverse,
        None if resets is None else stop[:, :, 0],
        # Products of many decays may overflow.
        partial(carried_add, where=tf.where),
    )
    entering = _swap_time(entering)

    def joined(product, state, stop):
        reaching = entering if resets is None else _dropped(entering, stop)
        # In float64, as long as products may overflow float32.
        arriving = _cast(carried(product, reaching, tf.where), inputs[0].dtype)
        return tuple(part + new for part, new in zip(state, arriving))

    outputs = zip(*map(joined, products, states, stops))
    begin = padding if reverse else 0
    whole = (
        tf.reshape(tf.stack(part, axis=2), (batch, count * size, channels))
        for part in outputs
    )
    return tuple(
        tf.ensure_shape(part[:, begin : begin + time], inputs[0].shape)
        for part in whole
    )
