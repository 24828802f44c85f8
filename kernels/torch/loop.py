"""A loop over time for any step function."""

import torch


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


def require_length(time):
    """Raise if a length is open while a program is traced."""
    if isinstance(time, int):
        return
    raise ValueError(
        "PyTorch exports a recurrence that runs in a loop for one number of "
        "steps only, because the loop is unrolled. Give `model.export` an "
        "`input_signature` with a fixed number of steps, export the result of "
        "`keras_linrec.export_step(model)`, or export a SavedModel under "
        f"TensorFlow or JAX. Received: {time} steps"
    )
