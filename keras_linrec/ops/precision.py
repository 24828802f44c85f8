"""In which precision recurrences are computed."""

import keras
from keras import ops


def accumulation_dtype(*tensors):
    """float64 if a tensor is, else float32, whatever came in."""
    dtypes = (
        keras.backend.standardize_dtype(ops.convert_to_tensor(tensor).dtype)
        for tensor in tensors
    )
    return "float64" if "float64" in dtypes else "float32"
