"""A loop over time in operations that every converter knows.

LiteRT has no lists of tensors, of which `tf.TensorArray` and `keras.ops.scan`
are made: here the outputs are one tensor, of which each step writes a part.
"""

import tensorflow as tf

# Steps between two passes over all outputs. LiteRT copies what a loop carries
# in every round: 16,000 steps of a small LRU in one loop take 9.9 s.
_BLOCK = 128


def scan_steps(step, state, sequences, reverse=False):
    """A loop whose length may be unknown.

    Args:
        step: function `step(state, items)` that returns the next state and a
            tuple of outputs.
        state: tensor, or nest of them, before the first step.
        sequences: list of tensors (time, ...); one at least.
        reverse: whether the last step comes first. Defaults to `False`.

    Returns:
        `(state, outputs)`: after the last step, and a tuple of (time, ...).
    """
    count = tf.shape(sequences[0])[0]
    # As many batches and channels as a step has.
    _, first = step(state, [part[0] for part in sequences])
    outputs = _zeros(0, first)

    def body(passed, state, outputs):
        size = tf.minimum(_BLOCK, count - passed)
        start = count - passed - size if reverse else passed
        block = [part[start : start + size] for part in sequences]
        state, now = _scan_block(
            step, state, block, _zeros(size, first), reverse
        )
        pairs = [pair[::-1] if reverse else pair for pair in zip(outputs, now)]
        outputs = tuple(tf.concat(pair, 0) for pair in pairs)
        return passed + size, state, outputs

    growing = tuple(tf.TensorShape([None, *part.shape[1:]]) for part in outputs)
    _, state, outputs = tf.while_loop(
        lambda passed, *_: passed < count,
        body,
        (0, state, outputs),
        shape_invariants=(tf.TensorShape([]), _shapes(state), growing),
    )
    return state, outputs


def _shapes(state):
    return tf.nest.map_structure(lambda part: part.shape, state)


def _zeros(count, of_a_step):
    return tuple(
        tf.zeros(tf.concat([[count], tf.shape(part)], 0), part.dtype)
        for part in of_a_step
    )


def _scan_block(step, state, sequences, outputs, reverse):
    count = tf.shape(sequences[0])[0]

    def body(passed, state, outputs):
        index = count - 1 - passed if reverse else passed
        items = [tf.gather(part, index) for part in sequences]
        state, now = step(state, items)
        outputs = tuple(
            tf.tensor_scatter_nd_update(part, [[index]], new[None])
            for part, new in zip(outputs, now)
        )
        return passed + 1, state, outputs

    _, state, outputs = tf.while_loop(
        lambda passed, *_: passed < count, body, (0, state, outputs)
    )
    return state, outputs


def scan_of_any_length(step, state, sequences, constants):
    """See `keras_linrec.kernels.torch`."""

    def run(state, items):
        state, outputs = step(state, items, constants)
        return state, (outputs,)

    state, (outputs,) = scan_steps(run, state, sequences)
    return state, outputs
