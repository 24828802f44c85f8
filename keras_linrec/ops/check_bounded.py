"""A word about numbers that grow beyond all bounds."""

from keras_linrec.kernels import check_bounded


def require_bounded(tensor, message):
    """The tensor, and an error or a warning where it is not below 1e30.

    TensorFlow and PyTorch raise an error of theirs. What JAX has compiled
    cannot, and warns.

    Args:
        tensor: float tensor.
        message: string, what to say.
    """
    return check_bounded.require_bounded(tensor, message)
