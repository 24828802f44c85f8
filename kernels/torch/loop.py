"""A loop over time for any step."""

import torch


def loop(step, sequences, state, constants):
    """What `keras_linrec.kernels.recurrence` asks of a loop."""
    states = []
    # Once: indexing by time in the loop would cost the gradient a whole
    # sequence's memory traffic a step.
    for items in zip(*(part.unbind(1) for part in sequences)):
        state = step(state, items, constants)
        states.append(state)
    return torch.stack(states, dim=1)
