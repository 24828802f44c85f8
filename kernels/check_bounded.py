"""Checks for numbers that diverge, which work in compiled programs too.

Each backend's folder implements them in its `check_bounded.py`. TensorFlow and
PyTorch raise. Programs compiled by JAX cannot raise and warn instead. Programs
that XLA compiles for TensorFlow, and programs exported from JAX, contain no
check.
"""

import importlib

import keras

# Well below the largest float32, because a transform sums such numbers.
LARGEST = 1e30


# By backend: PyTorch's compiler can trace a look-up but not an import.
_checks = {}


def require_bounded(tensor, message):
    """Return the tensor; raise or warn unless all magnitudes are below 1e30."""
    backend = keras.backend.backend()
    if backend not in _checks:
        module = importlib.import_module(
            f"{__package__}.{backend}.check_bounded"
        )
        _checks[backend] = module.require_bounded
    return _checks[backend](tensor, message)
