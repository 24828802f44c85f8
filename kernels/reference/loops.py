"""Loops over an axis, in either direction."""

import keras
from keras import ops

from keras_linrec.kernels.exporting import kernel_of_loops


def scan(step, state, sequences, reverse=False):
    """`keras.ops.scan`, for files too."""
    if reverse and kernel_of_loops():
        # jax2onnx knows no loops from the end.
        state, outputs = ops.scan(step, state, _flipped(sequences))
        return state, _flipped(outputs)
    return ops.scan(step, state, sequences, reverse=reverse)


def _flipped(sequences):
    return keras.tree.map_structure(lambda part: ops.flip(part, 0), sequences)
