"""Steps of sequences by their indices."""

import math

import keras
from keras import ops

from keras_linrec.kernels.exporting import exporting


def order(mask):
    """The indices (batch, time) that put steps with a true mask first."""
    batch, time = ops.shape(mask)
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    step = ops.arange(0, time, dtype="int32")[None]
    # Masked steps come after all others.
    place = ops.where(mask, counts - 1, step - counts + counts[:, -1:])
    place = place + ops.arange(0, batch, dtype="int32")[:, None] * time
    step = ops.broadcast_to(step, (batch, time))
    place = ops.reshape(place, (-1, 1))
    # Not `ops.scatter`, which is a loop on PyTorch.
    ordered = ops.scatter_update(
        ops.zeros_like(place[:, 0]), place, ops.reshape(step, (-1,))
    )
    return ops.reshape(ordered, (batch, time))


def take(sequences, index):
    """Gather the steps `index` of each row.

    Args:
        sequences: (batch, time, ...).
        index: integers (batch, count).

    Returns:
        A tensor (batch, count, ...).
    """
    shape = ops.shape(sequences)
    if 0 in sequences.shape[:2]:
        # JAX cannot gather from an empty tensor.
        return ops.zeros(
            (*ops.shape(index), *sequences.shape[2:]), sequences.dtype
        )
    if keras.backend.backend() == "jax" and not exporting():
        # XLA sees that rows are independent, and leaves them where they are.
        ones = (1,) * (len(shape) - 2)
        index = ops.reshape(index, (*ops.shape(index), *ones))
        return ops.take_along_axis(sequences, index, axis=1)
    rows = ops.arange(0, shape[0], dtype="int32")[:, None] * shape[1]
    # As rows of features: Keras squeezes what PyTorch gathers of another rank,
    # along an axis of any size, which ONNX cannot.
    rest = sequences.shape[2:]
    flat = ops.reshape(sequences, (shape[0] * shape[1], math.prod(rest)))
    taken = ops.take(flat, rows + ops.cast(index, "int32"), axis=0)
    return ops.reshape(taken, (*ops.shape(index), *rest))
