"""The operators' gradients and `torch.vmap` rules.

Importing this module registers them. The gradient of an operator is another
operator, whose own gradient is that of the plain form and has derivatives of
any order.
"""

from functools import partial

import torch

from keras_linrec.kernels.native.gradients import dense_cotangents
from keras_linrec.kernels.native.gradients import from_kept
from keras_linrec.kernels.native.gradients import gradient_arguments
from keras_linrec.kernels.native.gradients import kept_places
from keras_linrec.kernels.native.gradients import of_all_arguments
from keras_linrec.kernels.native.gradients import second_gradient
from keras_linrec.kernels.native.table import nested
from keras_linrec.kernels.torch import batched_gradients
from keras_linrec.kernels.torch.operators import OPERATORS
from keras_linrec.kernels.torch.operators import library


def register(operator):
    """Registers an operator's gradient and its rules for mapped functions."""
    is_gradient = operator.operation.is_gradient
    gradient = _SecondGradient() if is_gradient else _Gradient(operator)
    _register_gradient(operator, gradient)
    torch.library.register_vmap(
        f"keras_linrec::{operator.name}",
        partial(_run_mapped, operator),
        lib=library,
    )
    batched_gradients.register(operator)


def _register_gradient(operator, gradient):
    """Registers `keep` and `run` of a gradient.

    `torch.library.register_autograd` does the same, but takes lists of tensors
    apart and puts them together again at every turn: a forward and backward
    pass of `RotRNN` calls 6,290 Python functions with it and 5,450 without.
    """

    def run_below(keyset, given):
        with torch._C._AutoDispatchBelowAutograd():
            keyset = keyset & torch._C._after_autograd_keyset
            return operator.call.redispatch(keyset, *given)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, keyset, given, settings, *tensors):
            results = run_below(keyset, given)
            ctx.call, ctx.wanted = settings
            gradient.keep(ctx, tensors, results)
            return tuple(results)

        @staticmethod
        def backward(ctx, *cotangents):
            first, needs = [None] * 3, ctx.needs_input_grad[3:]
            return *first, *gradient.run(ctx, needs, cotangents)

    def run(keyset, *given):
        *settings, tensors = operator.read(given)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return list(Recorded.apply(keyset, given, settings, *tensors))
        return run_below(keyset, given)

    library.impl(operator.name, run, "Autograd", with_keyset=True)


class _Gradient:
    """The gradient of an operator, by another one."""

    def __init__(self, operator):
        self.backward = OPERATORS[operator.operation.backward.name]

    def keep(self, ctx, tensors, results):
        """Keeps what the gradient reads of arguments and results."""
        # Cotangents of zeros may be large, and the core needs none of them.
        ctx.set_materialize_grads(False)
        ctx.shapes = [part.shape for part in results]
        everything = [*tensors, *results]
        places = kept_places(ctx.call)
        ctx.save_for_backward(*[everything[place] for place in places])

    def run(self, ctx, needs, cotangents):
        call, saved = ctx.call, ctx.saved_tensors
        # Of the shapes of the results, without memory.
        shapes = [saved[0].new_empty(()).expand(shape) for shape in ctx.shapes]
        cotangents = dense_cotangents(
            call, shapes, cotangents, lambda part: part.new_zeros(part.shape)
        )
        given = gradient_arguments(call, *from_kept(call, saved), cotangents)
        backward, wanted = call.backward, None
        settings = [backward.flags, *backward.attributes]
        if backward.operation.wanted:
            wanted = backward.operation.wanted_for(needs)
            settings.insert(0, list(wanted))
        results = self.backward(*settings, *nested(backward, given))
        return of_all_arguments(call, results, wanted)


class _SecondGradient:
    """The gradient of an operator that is itself a gradient.

    In operations that PyTorch differentiates as often as it has to.
    """

    def keep(self, ctx, tensors, results):
        ctx.save_for_backward(*tensors)

    def run(self, ctx, needs, cotangents):
        return second_gradient(
            pull_back,
            ctx.call.forward,
            ctx.saved_tensors,
            cotangents,
            ctx.wanted,
            create_graph=torch.is_grad_enabled(),
        )


def pull_back(function, tensors, cotangents, create_graph=True):
    """Gradients of a function of a list of tensors: see native/gradients.py."""
    with torch.enable_grad():
        # Views, because one argument may have been computed from another, and
        # the gradients are to be those of the function alone.
        tensors = [
            tensor.view_as(tensor)
            if tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in tensors
        ]
        return torch.autograd.grad(
            function(tensors),
            tensors,
            cotangents,
            create_graph=create_graph,
            materialize_grads=True,
        )


def _run_mapped(operator, info, in_dims, *given):
    """The rule of `torch.vmap`: the mapped axis is a leading one."""

    def to_front(tensor, dim):
        if isinstance(tensor, (list, tuple)):
            return [to_front(*pair) for pair in zip(tensor, dim)]
        if dim is None:
            return tensor.expand(info.batch_size, *tensor.shape)
        return tensor.movedim(dim, 0)

    first = operator.settings
    moved = map(to_front, given[first:], in_dims[first:])
    results = operator(*given[:first], *moved)
    return results, [0] * len(results)


for _operator in OPERATORS.values():
    register(_operator)
