"""A word about numbers that grow beyond all bounds, from compiled programs.

It is in `check_bounded.py` of each backend's folder. TensorFlow and PyTorch
raise. A program that JAX has compiled cannot, and warns; one that XLA has
compiled for TensorFlow is silent, and so is what JAX exports, which holds no
such check.
"""

import importlib

import keras

# Well below the largest float32: a transform still has to sum such numbers.
LARGEST = 1e30


# By backend. PyTorch's compiler follows a look-up here, and no import.
_checks = {}


def require_bounded(tensor, message):
    """The tensor, and an error or a warning where it is not below 1e30."""
    backend = keras.backend.backend()
    if backend not in _checks:
        module = importlib.import_module(
            f"{__package__}.{backend}.check_bounded"
        )
        _checks[backend] = module.require_bounded
    return _checks[backend](tensor, message)
