"""Checks that values stay bounded."""

from functools import reduce

from keras import ops

from keras_linrec.kernels import check_bounded


def require_bounded(tensor, message):
    """Return the tensor; complain if a magnitude exceeds 1e30 or is NaN.

    TensorFlow and PyTorch raise their own error. A program compiled by JAX
    cannot raise, and warns.

    Args:
        tensor: float tensor.
        message: string, the text of the error or warning.
    """
    return check_bounded.require_bounded(tensor, message)


# The largest number that a row may be given. Greater ones bring states near the
# limit by themselves, however stable the system is.
_LARGEST_GIVEN = 1e20


def require_bounded_rows(tensor, message, given):
    """As `require_bounded`, in the rows whose given numbers are at most 1e20.

    A NaN, or a number greater still, stays in its row: it is no error.

    Args:
        tensor: float tensor, (batch, ...).
        message: string, the text of the error or warning.
        given: list of tensors (batch, ...), from which the tensor follows.
    """
    known = reduce(ops.logical_and, map(_are_moderate, given))
    for _ in tensor.shape[1:]:
        known = ops.expand_dims(known, -1)
    bounded = require_bounded(ops.where(known, tensor, 0.0), message)
    return ops.where(known, bounded, tensor)


def _are_moderate(tensor):
    """Whether the numbers of each row may be given, (batch,)."""
    axes = tuple(range(1, len(tensor.shape)))
    return ops.all(ops.abs(tensor) <= _LARGEST_GIVEN, axis=axes)
