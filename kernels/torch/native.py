"""The native kernels on PyTorch, which call the operators of `operators.py`.

Importing this module builds and loads the library.
"""

import torch

from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import nested
from keras_linrec.kernels.native.table import with_cotangents
from keras_linrec.kernels.operations import native_functions
from keras_linrec.kernels.torch import gradients as gradients
from keras_linrec.kernels.torch import is_recorded
from keras_linrec.kernels.torch import is_transformed
from keras_linrec.kernels.torch.operators import OPERATORS


def run(call, *quantities):
    """The results of a native call that have cotangents."""
    operator = OPERATORS[call.name]
    tensors = flatten(quantities)
    if "keep" in operator.operation.attributes and _may_need(tensors):
        call = call.with_all_steps()
    # `torch.autocast` may have changed some dtypes.
    like = tensors[0]
    tensors = [
        like.new_empty((0, 0)) if part is None else part.to(like.dtype)
        for part in tensors
    ]
    results = operator(call.flags, *call.attributes, *nested(call, tensors))
    return with_cotangents(call, results)


def _may_need(tensors):
    """Whether a gradient of these tensors may be asked for."""
    # Within `torch.vmap`, tensors do not say whether they require gradients.
    return torch.is_grad_enabled() and (
        is_transformed() or any(part.requires_grad for part in tensors)
    )


def _is_whole(mask):
    """Whether no step is masked, if that can be read now.

    An operator may not return its argument, and a copy at (16, 2048, 128) takes
    3 to 8 ms, most of it for memory that is new.
    """
    return not is_recorded() and mask.device.type == "cpu" and bool(mask.all())


_functions = native_functions(run)


def _move_steps(sequences, mask, to_places, with_masked):
    if _is_whole(mask):
        return sequences
    return _functions["move_steps"](sequences, mask, to_places, with_masked)


FUNCTIONS = {**_functions, "move_steps": _move_steps}
