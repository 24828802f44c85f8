"""Products in float32, where the framework's default may be less.

By default a TPU rounds the operands of a product to bfloat16, and TensorFlow
and JAX let an NVIDIA GPU round them to TF32; PyTorch does so on request. That
is precise enough for projections, which are applied once, and follow the
framework's own switch. A transition is applied at every step: what computes
one, a state from another, or the gradient of either, goes through here.
"""

import operator
from functools import partial

from keras import ops

from keras_linrec.kernels import backends


def matmul(a, b):
    """`a @ b`, and its gradients, in float32 or float64."""
    return backends.current().in_full_precision(operator.matmul, a, b)


def einsum(equation, a, b):
    """`ops.einsum(equation, a, b)`, and its gradients, likewise."""
    return backends.current().in_full_precision(
        partial(ops.einsum, equation), a, b
    )
