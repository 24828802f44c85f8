"""An error about numbers that grow beyond all bounds."""

import torch

from keras_linrec.kernels.check_bounded import LARGEST


def require_bounded(tensor, message):
    """What `keras_linrec.kernels.check_bounded` says."""
    # Asynchronous: on a GPU nothing waits for it.
    torch._assert_async(tensor.detach().abs().max() < LARGEST, message)
    return tensor
