"""PyTorch: time in blocks, or a loop over unbound steps."""

from keras_linrec.kernels.torch.loop import loop as loop
from keras_linrec.kernels.torch.scan import associative as associative
from keras_linrec.kernels.torch.scan import sequential as sequential


def preferred():
    """The faster kernel here, by measurement.

    Forward on a 2-core CPU at (4, 16384, 64), real: 3.8 ms in blocks, 45.6 ms
    in the loop; at (16, 4096, 256): 24 against 43. On an accelerator a block
    also needs about the square root as many launches.
    """
    return "associative"


def compiled():
    """The module of the compiled kernels."""
    from keras_linrec.kernels.torch import native

    return native


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then the gradients of its arguments."""
    import torch

    with torch.enable_grad():
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
        outputs = function(tensors)
        gradients = torch.autograd.grad(
            outputs, tensors, cotangents, materialize_grads=True
        )
    return [part.detach() for part in (*outputs, *gradients)]


def tracing():
    """Whether a function is traced, and not by PyTorch's compiler."""
    import torch

    if torch.compiler.is_dynamo_compiling():
        return False
    return torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
