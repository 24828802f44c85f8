"""The states of structured systems where a call gives none."""

from keras import ops


def zero_state(inputs, output_matrix):
    """The states before the first step, (batch, features, N)."""
    features, _, state_size = output_matrix.shape
    shape = ops.shape(inputs)[0], features, state_size
    return ops.zeros(shape, output_matrix.dtype)
