"""Operators under the older of PyTorch's two ways to map a function.

`torch.vmap` has a public rule for an operator. But `torch.autograd.grad(...,
is_grads_batched=True)`, and with it `torch.autograd.functional.jacobian(...,
vectorize=True)` and `gradcheck(check_batched_grad=True)`, map the backward pass
in an older way, which knows no rules for operators that take lists. Its tensors
are told apart by a dispatch key, and our operators take leading axes anyway.
"""

import torch
from torch import Tensor

from keras_linrec.kernels.native.table import nested
from keras_linrec.kernels.torch.operators import library


def register(operator):
    """Registers the rule of an `Operator`, which takes leading axes."""

    def run(*given):
        call, _, tensors = operator.read(given)
        level = _level()
        unmapped = nested(call, _unmapped(tensors, level))
        results = operator(*given[: operator.settings], *unmapped)
        return [torch._add_batch_dim(part, 0, level) for part in results]

    library.impl(operator.name, run, "Batched")


def _level():
    """The number of maps around this call; those within count first."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    return level - 1


def _unmapped(tensors, level):
    """The tensors with the mapped axis in front."""
    # What is not mapped is expanded to the size given here.
    size = max(_without_map(part, level, 1).shape[0] for part in tensors)
    return [_without_map(part, level, size) for part in tensors]


def _without_map(tensor: Tensor, level, size):
    return torch._remove_batch_dim(tensor, level, size, 0)
