"""A loop over time for any step function."""

import tensorflow as tf

from keras_linrec.kernels.exporting import kernel_of_loops
from keras_linrec.kernels.tensorflow.steps_of_files import scan_of_any_length


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""
    time = sequences[0].shape[1]
    if kernel_of_loops():
        return _loop_of_a_file(step, sequences, state, constants)
    count = tf.shape(sequences[0])[1] if time is None else time
    arrays = [
        tf.TensorArray(part.dtype, size=count).unstack(_time_first(part))
        for part in sequences
    ]
    units = state.shape[1]
    states = tf.TensorArray(
        state.dtype, size=count, element_shape=(None, units)
    )

    def body(index, state, states):
        items = tuple(array.read(index) for array in arrays)
        state = step(state, items, constants)
        return index + 1, state, states.write(index, state)

    # The bound lets XLA differentiate the loop.
    *_, states = tf.while_loop(
        lambda index, *_: index < count,
        body,
        (0, state, states),
        # The initial state may have a static batch size where steps have none.
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None, units]),
            tf.TensorShape(None),
        ),
        maximum_iterations=count,
    )
    outputs = tf.transpose(states.stack(), (1, 0, 2))
    return tf.ensure_shape(outputs, (sequences[0].shape[0], time, units))


def _loop_of_a_file(step, sequences, state, constants):
    def run(state, items, constants):
        state = step(state, items, constants)
        return state, state

    items = [_time_first(part) for part in sequences]
    _, states = scan_of_any_length(run, state, items, constants)
    return _time_first(states)


def _time_first(part):
    return tf.transpose(part, (1, 0, 2))
