"""An error about numbers that diverge."""

import torch

from keras_linrec.kernels.check_bounded import LARGEST
from keras_linrec.kernels.torch import is_transformed


def require_bounded(tensor, message):
    """See `keras_linrec.kernels.check_bounded`."""
    if is_transformed():
        # `torch.vmap` has no rule for the check.
        return tensor
    if not tensor.numel():
        return tensor
    # Asynchronous, so that it does not synchronise with a GPU.
    torch._assert_async(tensor.detach().abs().max() < LARGEST, message)
    return tensor
