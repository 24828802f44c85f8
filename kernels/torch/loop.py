"""A loop over time for any step."""

import torch


def loop(step, sequences, state, constants):
    """What `keras_linrec.kernels.nonlinear_recurrence` asks of a loop."""
    time = sequences[0].shape[1]
    if not isinstance(time, int):
        raise ValueError(
            "PyTorch exports a recurrence that is nonlinear in its state for "
            "one number of steps only, because its loop is written out. Give "
            "`model.export` an `input_signature` with a fixed time, export "
            "what `keras_linrec.export_step(model)` returns, or export a "
            f"SavedModel under TensorFlow or JAX. Received: {time} steps"
        )
    states = []
    # Once: indexing by time in the loop would cost the gradient a whole
    # sequence's memory traffic a step.
    for items in zip(*(part.unbind(1) for part in sequences)):
        state = step(state, items, constants)
        states.append(state)
    return torch.stack(states, dim=1)
