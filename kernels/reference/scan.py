from keras import ops

from keras_linrec.complex_pairs import multiply_add


def scan(decay, inputs, initial_state, reverse=False):
    """h_t = decay_t * h_{t-1} + inputs_t, one step after another."""
    time_invariant = len(decay[0].shape) == 1

    def step(state, now):
        decay_now = decay if time_invariant else now[: len(decay)]
        state = multiply_add(decay_now, state, now[-len(inputs) :])
        return state, state

    sequences = inputs if time_invariant else (*decay, *inputs)
    _, outputs = ops.scan(
        step,
        tuple(initial_state),
        tuple(ops.swapaxes(part, 0, 1) for part in sequences),
        reverse=reverse,
    )
    return tuple(ops.swapaxes(part, 0, 1) for part in outputs)
