"""PyTorch: time in blocks, or a loop over unbound steps."""

from contextlib import contextmanager

import keras

from keras_linrec import settings
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


def platform():
    """The platform of tensors that are made without a word on theirs."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe(tensor):
    """What a `Case` says of the tensors that a call was given."""
    import torch

    device = tensor.device.type
    return {
        "platform": "cpu" if device == "meta" else device,
        "operators": _operators_run(device),
        "unrolled": torch.compiler.is_compiling(),
    }


def _operators_run(device):
    """Whether custom operators run on a device, here and now."""
    # Nothing is computed on "meta": Keras traces shapes there.
    if device not in ("cpu", "cuda", "meta") or _is_differentiated_by_func():
        return False
    if device != "cuda":
        return True
    from keras_linrec.kernels.torch.operators import cuda_library

    return cuda_library() is not None


def _is_differentiated_by_func():
    """Whether `torch.func` differentiates, which custom operators forbid.

    `torch.vmap` by itself is no obstacle.
    """
    import torch

    if torch.compiler.is_compiling():
        return False
    if not torch._C._are_functorch_transforms_active():
        return False
    levels = torch._C._functorch.get_interpreter_stack()
    return any(
        level.key() != torch._C._functorch.TransformType.Vmap
        for level in levels
    )


def exporting():
    """Whether a scope says so, or PyTorch writes an ONNX file."""
    import torch

    # Its compiler makes no files, and would look for the scope at each call.
    if torch.compiler.is_dynamo_compiling():
        return False
    return (
        settings.current_export() is not None or torch.onnx.is_in_onnx_export()
    )


def with_fixed_sizes(tensor):
    """What `keras_linrec.kernels.exporting` says."""
    import torch

    if torch.compiler.is_dynamo_compiling() or not torch.jit.is_tracing():
        return tensor
    sizes = [int(size) for size in tensor.shape]
    # Of as many numbers in all, and with no axis that differs.
    return torch.maximum(tensor.reshape(sizes), tensor)


def over_devices(kernel):
    """The `Kernel`: no devices share the time here."""
    return kernel


@contextmanager
def checking():
    """The scope in which a kernel is checked."""
    import torch

    # Keras traces shapes on PyTorch's meta device, which holds no values; and
    # in inference mode there are no gradients to check.
    with keras.device(platform()), torch.inference_mode(False):
        yield


def trace(function, shape, dtype):
    """Run a function of one tensor, on zeros."""
    import torch

    with torch.no_grad():
        function(keras.ops.zeros(shape, dtype))
