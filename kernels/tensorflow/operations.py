"""The operations of `source/adapters/tensorflow.cpp`.

Importing this module builds and loads their library.
"""

import tensorflow as tf

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import nested

library = build.load("tensorflow", tf.load_op_library)


def run_call(call, tensors, wanted=None, on_cuda=False):
    """The results of a call, a flat list.

    Args:
        call: `Call`.
        tensors: flat list of its arguments.
        on_cuda: whether the CUDA core runs it. Defaults to `False`.
        wanted: which results to compute. The others have no elements. Defaults
            to `None`, all.
    """
    operation = call.operation
    attributes = dict(zip(operation.attributes, call.encoded(), strict=True))
    if operation.wanted:
        attributes["wanted"] = wanted or [True] * len(operation.results)
    # The generated wrappers accept a list of tensors only as a `list`, and
    # without variables in it.
    tensors = map(tf.convert_to_tensor, tensors)
    core = "cuda_" if on_cuda else ""
    results = getattr(library, f"keras_linrec_{core}{call.name}")(
        *nested(call, tensors), flags=call.flags, **attributes
    )
    # A single result is not in a tuple.
    return flatten(results if len(operation.results) > 1 else [results])
