"""First and second derivatives of functions of tensors, for analysis."""

import torch


def gradient(function):
    """See `keras_linrec.ops.differentiation`."""

    def run(tensors, constants):
        with torch.enable_grad():
            tensors = _leaves(tensors)
            return _gradient(function(tensors, constants), tensors)

    return run


def hessian_vector_product(function):
    """See `keras_linrec.ops.differentiation`."""

    def run(tensors, vectors, constants):
        # cuDNN's recurrent layers have first derivatives only.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            tensors = _leaves(tensors)
            gradients = _gradient(
                function(tensors, constants), tensors, create_graph=True
            )
            slope = sum(
                torch.sum(one * other) for one, other in zip(gradients, vectors)
            )
            return _gradient(slope, tensors)

    return run


def _leaves(tensors):
    return [tensor.detach().requires_grad_() for tensor in tensors]


def _gradient(value, tensors, create_graph=False):
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in tensors]
    return torch.autograd.grad(
        value, tensors, create_graph=create_graph, materialize_grads=True
    )
