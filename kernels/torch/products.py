"""The precision of PyTorch's own products on a GPU."""

from contextlib import contextmanager
from operator import matmul


def in_full_precision(function, *tensors):
    """A product of float32 tensors that PyTorch does not compute in TF32.

    Args:
        function: a function of tensors that computes one product.
        *tensors: its arguments.
    """
    import torch

    if function is matmul and _are_batches(tensors):
        # `torch.matmul` takes four more operations to see that they fit, and
        # as many in the gradient: 0.5 ms in an eager pass of a `RotRNN`.
        function = torch.bmm
    dtype = tensors[0].dtype
    if dtype != torch.float32 or not _may_be_rounded(tensors[0]):
        return function(*tensors)
    # PyTorch has no precision for a single product; one in float64 is precise
    # whatever the switch says, and so are its gradients.
    return function(*(tensor.double() for tensor in tensors)).to(dtype)


def _are_batches(tensors):
    """Whether two tensors are equally many matrices."""
    one, other = (tuple(tensor.shape) for tensor in tensors)
    return len(one) == len(other) == 3 and one[0] == other[0]


def _may_be_rounded(tensor):
    import torch

    if tensor.device.type != "cuda":
        return False
    # A compiled program may run after the switch has been moved.
    return torch.compiler.is_compiling() or _switch()[1] in ("tf32", True)


def _switch():
    """The name of PyTorch's switch for TF32, and its value."""
    import torch

    matmul = torch.backends.cuda.matmul
    # Versions before 2.9 have only the other one, newer ones warn of it.
    name = "fp32_precision"
    if not hasattr(matmul, name):
        name = "allow_tf32"
    return name, getattr(matmul, name)


@contextmanager
def in_float32():
    """A scope in which no product on a GPU is computed in TF32.

    The switch belongs to the process: products of other threads are float32
    meanwhile.
    """
    import torch

    matmul = torch.backends.cuda.matmul
    name, value = _switch()
    setattr(matmul, name, False if name == "allow_tf32" else "ieee")
    try:
        yield
    finally:
        setattr(matmul, name, value)
