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


def device_of(name, tensors):
    """The device on which all tensors are.

    Raises:
        ValueError: if they are on several. `name` is the operator that
            received them.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(
            f"`torch.ops.keras_linrec.{name}` expects tensors on one device. "
            f"Received: devices={sorted(map(str, devices))}"
        )
    return devices.pop()
