"""An error about numbers that diverge."""

import torch

from keras_linrec.kernels.check_bounded import LARGEST


def require_bounded(tensor, message):
    """See `keras_linrec.kernels.check_bounded`."""
    is_compiled = torch.compiler.is_compiling()
    if not is_compiled and torch._C._are_functorch_transforms_active():
        # `torch.vmap` has no rule for the check.
        return tensor
    if not tensor.numel():
        return tensor
    # Asynchronous, so that it does not synchronise with a GPU.
    torch._assert_async(tensor.detach().abs().max() < LARGEST, message)
    return tensor
