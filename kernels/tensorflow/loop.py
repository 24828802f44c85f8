"""A loop over time for any step."""

import tensorflow as tf


def loop(step, sequences, state, constants):
    """What `keras_linrec.kernels.recurrence` asks of a loop."""
    time = sequences[0].shape[1]
    count = tf.shape(sequences[0])[1] if time is None else time
    arrays = [
        tf.TensorArray(part.dtype, size=count).unstack(_time_first(part))
        for part in sequences
    ]
    states = tf.TensorArray(state.dtype, size=count, element_shape=state.shape)

    def body(index, state, states):
        items = tuple(array.read(index) for array in arrays)
        state = step(state, items, constants)
        return index + 1, state, states.write(index, state)

    # The bound lets XLA differentiate the loop.
    *_, states = tf.while_loop(
        lambda index, *_: index < count,
        body,
        (0, state, states),
        maximum_iterations=count,
    )
    outputs = tf.transpose(states.stack(), (1, 0, 2))
    return tf.ensure_shape(outputs, (state.shape[0], time, state.shape[1]))


def _time_first(part):
    return tf.transpose(part, (1, 0, 2))
