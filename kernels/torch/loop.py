"""A loop over time for any step function."""

import torch

from keras_linrec.kernels.exporting import require_length


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""
    require_length(sequences[0].shape[1])
    states = []
    # Unbound once: with indexing in the loop, the gradient would read and write
    # a whole sequence at each step.
    for items in zip(*(part.unbind(1) for part in sequences)):
        state = step(state, items, constants)
        states.append(state)
    return torch.stack(states, dim=1)
