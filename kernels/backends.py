"""The folder of the current Keras backend."""

import importlib

import keras

BACKENDS = ("jax", "tensorflow", "torch")

# By name: PyTorch's compiler can trace a dictionary look-up but not an import.
_folders = {}


def current():
    """The package `keras_linrec.kernels.<backend>`.

    Raises:
        ValueError: on any other Keras backend.
    """
    name = keras.backend.backend()
    if name not in _folders:
        if name not in BACKENDS:
            raise ValueError(
                "keras_linrec runs on the 'jax', 'tensorflow' and 'torch' "
                f"backends of Keras. Received: backend={name}"
            )
        _folders[name] = importlib.import_module(f"{__package__}.{name}")
    return _folders[name]
