"""The folder of the current Keras backend."""

import importlib

import keras

BACKENDS = ("jax", "tensorflow", "torch")

# The keys are the backend's name and, for modules, the backend's name and the
# module's. PyTorch's compiler can trace a dictionary look-up but not an import.
_modules = {}


def current():
    """The package `keras_linrec.kernels.<backend>`.

    Raises:
        ValueError: on any other Keras backend.
    """
    name = keras.backend.backend()
    if name not in _modules:
        if name not in BACKENDS:
            raise ValueError(
                "keras_linrec runs on the 'jax', 'tensorflow' and 'torch' "
                f"backends of Keras. Received: backend={name}"
            )
        _modules[name] = importlib.import_module(f"{__package__}.{name}")
    return _modules[name]


def module(name):
    """The module of that name in the current backend's package."""
    key = keras.backend.backend(), name
    if key not in _modules:
        _modules[key] = importlib.import_module(f"{current().__name__}.{name}")
    return _modules[key]
