"""Gradients of plain functions, for the gradients of native calls."""

import tensorflow as tf


def pull_back(function, tensors, cotangents, unconnected="zero"):
    """See `kernels/native/gradients.py`."""
    # Copies, so that the tape tells apart two uses of the same tensor.
    tensors = [tf.identity(tensor) for tensor in tensors]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = function(tensors)
    return tape.gradient(
        results,
        tensors,
        output_gradients=cotangents,
        unconnected_gradients=unconnected,
    )
