"""Operators under the older of PyTorch's two ways to map a function.

`torch.vmap` has a public rule for an operator. But `torch.autograd.grad(...,
is_grads_batched=True)`, and with it `torch.autograd.functional.jacobian(...,
vectorize=True)` and `gradcheck(check_batched_grad=True)`, map the backward pass
in an older way, which knows no rules for operators that take lists. Its tensors
are told apart by a dispatch key, and our operators take leading axes anyway.
"""

import torch
from torch import Tensor

from keras_linrec.kernels.torch.tensors import counts
from keras_linrec.kernels.torch.tensors import flatten
from keras_linrec.kernels.torch.tensors import nest

# It holds the rules for as long as the process lives.
_library = torch.library.Library("keras_linrec", "IMPL")


def register(operator, settings):
    """Registers the rule of a custom operator.

    Args:
        operator: the custom operator, which takes leading axes and returns a
            list of tensors.
        settings: the number of leading arguments that are not tensors.
    """

    def run(*given):
        numbers, arguments = given[:settings], given[settings:]
        level = _level()
        unmapped = _unmapped(flatten(arguments), level)
        results = operator(*numbers, *nest(unmapped, counts(arguments)))
        return [torch._add_batch_dim(part, 0, level) for part in results]

    name = operator._qualname.split("::")[1]
    _library.impl(name, run, "Batched")


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
