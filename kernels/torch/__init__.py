"""PyTorch: time in blocks, or a loop over unbound steps."""

from contextlib import contextmanager
from functools import partial

import keras

from keras_linrec import settings
from keras_linrec.kernels import powers
from keras_linrec.kernels.torch import products
from keras_linrec.kernels.torch.loop import loop as loop
from keras_linrec.kernels.torch.loop import (
    scan_of_any_length as scan_of_any_length,
)
from keras_linrec.kernels.torch.onnx_files import (
    onnx_of_any_size as onnx_of_any_size,
)
from keras_linrec.kernels.torch.openvino_files import (
    export_openvino as export_openvino,
)
from keras_linrec.kernels.torch.products import (
    in_full_precision as in_full_precision,
)
from keras_linrec.kernels.torch.scan import associative as associative
from keras_linrec.kernels.torch.scan import sequential as sequential

# See `kernel_of_loops` of `keras_linrec.kernels.exporting`.
KERNELS_OF_LOOPS = {}


def preferred():
    """The faster kernel here, by measurement.

    Forward on a 2-core CPU at (4, 16384, 64), real: 3.8 ms in blocks, 45.6 ms
    in the loop; at (16, 4096, 256): 24 against 43. On an accelerator the number
    of launches grows as the square root of the time instead of the time.
    """
    return "associative"


def compiled():
    """The module of the compiled kernels."""
    from keras_linrec.kernels.torch import native

    return native


def by_sections(scan):
    """A projected scan that keeps the states of a section of time."""
    from keras_linrec.kernels.torch import sections

    return partial(sections.by_sections, scan)


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then its arguments' gradients."""
    import torch

    with torch.enable_grad():
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
        outputs = function(tensors)
        gradients = torch.autograd.grad(
            outputs, tensors, cotangents, materialize_grads=True
        )
    return [part.detach() for part in (*outputs, *gradients)]


def platform():
    """The platform of tensors that are created without a device."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def native_platform():
    """The platform of the compiled kernels."""
    return platform()


def has_native(platform_of_case):
    """Whether there are compiled kernels for a platform."""
    return True


def describe(tensor):
    """The fields of a `Case` that depend on a call's tensors."""
    import torch

    device = tensor.device.type
    return {
        "platform": "cpu" if device == "meta" else device,
        "operators": _operators_run(device),
        "unrolled": torch.compiler.is_compiling(),
    }


def values_of(tensor):
    """See `keras_linrec.ops.concrete_values`."""
    import torch

    # Not a fake tensor.
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if is_recorded() or not is_plain or tensor.device.type != "cpu":
        return None
    # NumPy has no bfloat16.
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    elif isinstance(tensor, torch.nn.Parameter):
        # Memory that NumPy has seen cannot be resized, as FSDP2 does.
        tensor = tensor.clone()
    return tensor.detach().numpy()


def is_recorded():
    """Whether operations are recorded, and may run on other values later."""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    if is_transformed():
        return True
    # By `make_fx`.
    mode = torch._C._TorchDispatchModeKey.PROXY
    return torch._C._get_dispatch_mode(mode) is not None


def is_transformed():
    """Whether `torch.vmap` or another transform of `torch.func` runs.

    The compiler, which cannot trace the question, resolves them by itself.
    """
    import torch

    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active()


def _operators_run(device):
    """Whether custom operators can run on a device now."""
    # On "meta" Keras traces shapes and computes nothing.
    if device not in ("cpu", "cuda", "meta") or _is_differentiated_by_func():
        return False
    if _is_differentiated_forwards():
        return False
    if device != "cuda":
        return True
    from keras_linrec.kernels.native import cuda

    return cuda.is_here()


def _is_differentiated_forwards():
    """Whether tensors may carry tangents, which custom operators would drop."""
    import torch

    if torch.compiler.is_compiling():
        return False
    return torch.autograd.forward_ad._current_level >= 0


def _is_differentiated_by_func():
    """Whether `torch.func` differentiates, which custom operators forbid.

    `torch.vmap` alone is allowed.
    """
    import torch

    if not is_transformed():
        return False
    levels = torch._C._functorch.get_interpreter_stack()
    return any(
        level.key() != torch._C._functorch.TransformType.Vmap
        for level in levels
    )


def choose(condition, if_true, if_false):
    """The results of one of two functions, chosen by what a tensor holds.

    Where that cannot be read now, as in a program that is traced, compiled or
    mapped, the second.

    Args:
        condition: boolean scalar tensor.
        if_true, if_false: functions without arguments, of results of the same
            shapes.
    """
    return if_true() if can_read(condition) and condition else if_false()


def powers_with_remainder(numbers, count):
    """Powers of numbers, and what rounding the last one has lost.

    Args:
        numbers, count: those of `keras_linrec.complex_pairs.powers`.

    Returns:
        A tuple of tensors (..., count, n), each entry of which is off by no
        more than a rounding, and one of tensors (..., n) without a gradient,
        which the last power has lost.
    """
    if numbers[0].device.type == "mps":
        return powers.in_own_precision(numbers, count)
    return powers.in_float64(numbers, count)


def can_read(tensor):
    """Whether a program may depend on what a tensor holds."""
    return not is_recorded() and tensor.device.type != "meta"


def exporting():
    """Whether an export scope is open, or PyTorch writes an ONNX file."""
    import torch

    # `torch.compile` writes no files, and would guard on the scope.
    if torch.compiler.is_dynamo_compiling():
        return False
    return (
        settings.current_export() is not None or torch.onnx.is_in_onnx_export()
    )


def any_size(name):
    """See `any_batch` of `keras_linrec.kernels.exporting`."""
    import torch

    return torch.export.Dim(name)


def with_fixed_sizes(tensor):
    """See `keras_linrec.kernels.exporting`."""
    import torch

    if torch.compiler.is_dynamo_compiling() or not torch.jit.is_tracing():
        return tensor
    sizes = [int(size) for size in tensor.shape]
    # The reshape fixes the number of elements, the maximum every axis.
    return torch.maximum(tensor.reshape(sizes), tensor)


def over_devices(kernel):
    """The `Kernel` itself: sequences are split over devices on JAX only."""
    return kernel


@contextmanager
def checking():
    """The scope in which a kernel is checked: with products in float32."""
    import torch

    # Keras traces shapes on PyTorch's meta device, which has no values, and
    # inference mode has no gradients to check.
    with (
        keras.device(platform()),
        torch.inference_mode(False),
        products.in_float32(),
    ):
        yield


def program(function):
    """A function of tensors as users run it: eagerly."""
    return function


def device_name():
    """The device of tensors that are created without one, in words."""
    import torch

    if platform() == "cpu":
        return "cpu"
    count = torch.cuda.device_count()
    return f"{count} x {torch.cuda.get_device_name()} (cuda)"


def trace(function, shape, dtype):
    """Run a function of one tensor, on zeros."""
    import torch

    with torch.no_grad():
        function(keras.ops.zeros(shape, dtype))
