"""The operations of `source/tensorflow.cpp`, by the device of their tensors.

Importing this module builds and loads their library.
"""

import tensorflow as tf

from keras_linrec.kernels import backends
from keras_linrec.kernels.native import build

library = build.load("tensorflow", tf.load_op_library)


def operation_for(name, tensor):
    """The operation of a core's function, for the device of a tensor.

    Args:
        name: the name of the function, without `keras_linrec_`.
        tensor: an argument of the call.
    """
    on_cuda = "cuda_" if runs_on_cuda(tensor) else ""
    return getattr(library, f"keras_linrec_{on_cuda}{name}")


def runs_on_cuda(tensor):
    """Whether the CUDA core runs a call on a tensor."""
    backend = backends.current()
    platform = backend.describe(tensor)["platform"]
    return platform == "cuda" and backend.has_native(platform)
