"""What the cores ask of tensors."""

import torch

from keras_linrec.kernels.native.call_encoding import FLOAT64


def number_flag(name, tensors):
    """The flag for the tensors' dtype, float32 or float64.

    Raises:
        TypeError: if they have another dtype, or not all the same. `name` is
            the operator that received them.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    if dtypes == {torch.float64}:
        return FLOAT64
    if dtypes == {torch.float32}:
        return 0
    raise TypeError(
        f"`torch.ops.keras_linrec.{name}` expects tensors that are all float32 "
        f"or all float64. Received: dtypes={sorted(map(str, dtypes))}"
    )
