"""Checks for numbers that diverge, which work in compiled programs too.

Each backend's folder implements them in its `check_bounded.py`. TensorFlow and
PyTorch raise. Programs compiled by JAX cannot raise and warn instead. Programs
that XLA compiles for TensorFlow, and programs exported from JAX, contain no
check.
"""

from keras_linrec.kernels import backends

# Well below the largest float32, because a transform sums such numbers.
LARGEST = 1e30


def require_bounded(tensor, message):
    """Return the tensor; raise or warn unless all magnitudes are below 1e30."""
    return backends.module("check_bounded").require_bounded(tensor, message)
