"""A loop over time for any step function."""

import torch


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""
    time = sequences[0].shape[1]
    if not isinstance(time, int):
        raise ValueError(
            "PyTorch exports a recurrence that is nonlinear in its state for "
            "one number of steps only, because its loop is unrolled. Give "
            "`model.export` an `input_signature` with a fixed number of steps, "
            "export the result of `keras_linrec.export_step(model)`, or export "
            f"a SavedModel under TensorFlow or JAX. Received: {time} steps"
        )
    states = []
    # Unbound once: with indexing in the loop, the gradient would read and write
    # a whole sequence at each step.
    for items in zip(*(part.unbind(1) for part in sequences)):
        state = step(state, items, constants)
        states.append(state)
    return torch.stack(states, dim=1)
