from keras import ops

from keras_linrec.complex_pairs import multiply_add
from keras_linrec.kernels.reference import loops
from keras_linrec.kernels.resets import unused_at


def scan(decay, inputs, initial_state, reverse=False, resets=None):
    """h_t = decay_t * h_{t-1} + inputs_t, one step after another."""
    time_invariant = len(decay[0].shape) == 1
    decay = unused_at(resets, decay)

    def step(state, now):
        if resets is not None:
            *now, is_reset = now
            state = tuple(ops.where(is_reset != 0, 0.0, s) for s in state)
        decay_now = decay if time_invariant else now[: len(decay)]
        state = multiply_add(decay_now, state, now[-len(inputs) :])
        return state, state

    sequences = inputs if time_invariant else (*decay, *inputs)
    if resets is not None:
        sequences = (*sequences, ops.expand_dims(resets, -1))
    sequences = tuple(ops.swapaxes(part, 0, 1) for part in sequences)
    _, outputs = loops.scan(step, tuple(initial_state), sequences, reverse)
    return tuple(ops.swapaxes(part, 0, 1) for part in outputs)
