"""Helpers for quantities, which are lists of one tensor (real) or two
(complex)."""

import torch
from torch import Tensor

from keras_linrec.kernels.native.call_encoding import FLOAT64


def flatten(arguments):
    """The tensors of a sequence of tensors and of lists of tensors."""
    return [
        tensor
        for argument in arguments
        for tensor in ([argument] if isinstance(argument, Tensor) else argument)
    ]


def counts(arguments):
    """The number of tensors in each argument, for `nest`."""
    return [None if isinstance(a, Tensor) else len(a) for a in arguments]


def nest(tensors, counts):
    """The inverse of `flatten`; a count of `None` is a tensor not in a list."""
    tensors = iter(tensors)
    return [
        next(tensors) if n is None else [next(tensors) for _ in range(n)]
        for n in counts
    ]


def groups(tensors, counts):
    """A flat sequence of tensors, cut into tuples of the given lengths."""
    tensors = iter(tensors)
    return tuple(tuple(next(tensors) for _ in range(n)) for n in counts)


def alike(*quantities):
    """All in the dtype of the first: `torch.autocast` may change some."""
    dtype = quantities[0][0].dtype
    return [tuple(p.to(dtype) for p in parts) for parts in quantities]


def given(resets, inputs):
    """The resets, or a tensor without entries."""
    return inputs.new_empty((0, 0)) if resets is None else resets


def empty_like(tensors):
    # Not `torch.empty_like`, which would preserve transposed strides.
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def split_axes(tensor, count):
    """The sizes of a tensor's leading axes, and those of its last `count`.

    Raises:
        ValueError: if it has fewer axes.
    """
    if tensor.ndim < count:
        raise ValueError(
            f"`torch.ops.keras_linrec` expects a tensor with {count} or more "
            f"axes here. Received: shape={tuple(tensor.shape)}"
        )
    first = tensor.ndim - count
    return tuple(tensor.shape[:first]), tuple(tensor.shape[first:])


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
