"""ONNX files that take any batch and any time."""

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps

import torch

# Not 0 or 1, which PyTorch would fix, and apart from each other.
_BATCH, _OTHER = 2, 71

_is_open = ContextVar("keras_linrec_onnx_of_any_size", default=False)


@contextmanager
def onnx_of_any_size():
    """A scope in which Keras writes ONNX files by PyTorch's newer exporter.

    Where a size is not fixed, Keras (3.12 to 3.15) calls the older one, which
    unrolls loops over time at the traced length. The files have no notes of
    where in Python each operation was called: three quarters of a small model's
    file.
    """
    _open_scope_in_pytorch()
    before = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(before)


def _open_scope_in_pytorch():
    """Make PyTorch's exporter know the scope, once in a process."""
    plain = torch.onnx.export
    if getattr(plain, "leaves_sizes_open", False):
        return
    signature = inspect.signature(plain)

    @wraps(plain)
    def export(*args, **kwargs):
        if not _is_open.get():
            return plain(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        if given.get("dynamic_axes"):
            return _export(plain, **given)
        return _without_notes(plain(*args, **kwargs))

    export.leaves_sizes_open = True
    torch.onnx.export = export


def _export(
    export, model, args, f, input_names, dynamic_axes, opset_version=None, **_
):
    axes = [dynamic_axes.get(name, {}) for name in input_names]
    samples = [_sample(part, axis) for part, axis in zip(args, axes)]
    batch = torch.export.Dim("batch")
    sizes = [
        # How other sizes depend on each other is the model's affair.
        {place: torch.export.Dim.DYNAMIC if place else batch for place in axis}
        for axis in axes
    ]
    program = torch.export.export(
        _OfInputs(model),
        tuple(samples),
        dynamic_shapes={"inputs": tuple(sizes)},
        strict=False,
    )
    written = export(
        program,
        (),
        input_names=input_names,
        opset_version=opset_version,
        dynamo=True,
        verbose=False,
    )
    _without_notes(written).save(f)


def _without_notes(program):
    """What the newer exporter returns, or the older's `None`."""
    if program is not None:
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()
    return program


class _OfInputs(torch.nn.Module):
    """A model with the signature that names the inputs' sizes."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*inputs)


def _sample(tensor, axes):
    shape = list(tensor.shape)
    for place in axes:
        shape[place] = _OTHER if place else _BATCH
    return tensor.new_zeros(shape)
