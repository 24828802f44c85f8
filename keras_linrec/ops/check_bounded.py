"""A check that values stay bounded."""

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
