"""The precision of recurrences."""

import keras
from keras import ops

from keras_linrec.kernels.full_precision import einsum as einsum
from keras_linrec.kernels.full_precision import matmul as matmul


def accumulation_dtype(*tensors):
    """float64 if any tensor is float64, else float32; `None` is no tensor."""
    dtypes = (
        keras.backend.standardize_dtype(ops.convert_to_tensor(tensor).dtype)
        for tensor in tensors
        if tensor is not None
    )
    return "float64" if "float64" in dtypes else "float32"
