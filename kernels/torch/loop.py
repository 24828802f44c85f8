"""A loop over time for any step function."""

import inspect

import torch


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""
    if not isinstance(sequences[0].shape[1], int):
        return _loop_of_any_length(step, sequences, state, constants)
    states = []
    # Unbound once: with indexing in the loop, the gradient would read and write
    # a whole sequence at each step.
    for items in zip(*(part.unbind(1) for part in sequences)):
        state = step(state, items, constants)
        states.append(state)
    return torch.stack(states, dim=1)


def _loop_of_any_length(step, sequences, state, constants):
    """`loop` in a program that PyTorch exports."""

    def combine(state, items, constants):
        state = step(state, items, constants)
        return state, state

    items = [part.transpose(0, 1) for part in sequences]
    _, states = scan_of_any_length(combine, state, items, constants)
    return states.transpose(0, 1)


def scan_of_any_length(step, state, sequences, constants):
    """A loop as one operation of a program, or unrolled at a fixed length.

    Args:
        step: function `step(state, items, constants)` that returns the next
            state and an output. It reads no other tensors, and no symbols.
        state: tensor, before the first step.
        sequences: list of tensors (time, ...).
        constants: tuple of tensors; an entry may be `None`.

    Returns:
        `(state, outputs)`: after the last step, and (time, ...).
    """
    if isinstance(sequences[0].shape[0], int):
        outputs = []
        for items in zip(*(part.unbind(0) for part in sequences)):
            state, output = step(state, items, constants)
            outputs.append(output)
        return state, torch.stack(outputs)
    scan_op = _operation()
    if scan_op is None:
        raise ValueError(
            f"PyTorch {torch.__version__} exports loops for one number of "
            "steps only, because it has no `scan`. Give `model.export` an "
            "`input_signature` with a fixed number of steps, export the result "
            "of `keras_linrec.export_step(model)`, or use PyTorch 2.13. "
            f"Received: {sequences[0].shape[0]} steps"
        )
    # Tensors alone are part of the program, and no parameters.
    tensors = [part.clone() for part in constants if part is not None]
    count = len(sequences)

    def combine(state, *others):
        items, given = others[:count], iter(others[count:])
        found = [None if part is None else next(given) for part in constants]
        state, outputs = step(state, items, found)
        # No two results may be the same tensor.
        return [state, outputs.clone()]

    return scan_op(combine, [state.clone()], list(sequences), tuple(tensors))


def _operation():
    """PyTorch's `scan`, or `None` if it has none of this signature."""
    try:
        from torch._higher_order_ops.scan import scan_op
    except ImportError:
        return None
    names = tuple(inspect.signature(type(scan_op).__call__).parameters)
    wanted = ("self", "combine_fn", "init", "xs", "additional_inputs")
    return scan_op if names == wanted else None
