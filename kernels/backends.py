"""The folder of the current Keras backend."""

import importlib

import keras

BACKENDS = ("jax", "tensorflow", "torch")
# Those that each backend's folder has, and others call through `module`.
_NAMES = ("check_bounded", "differentiate")

# The keys are the backend's name and, for modules, the backend's name and the
# module's. PyTorch's compiler can trace a dictionary look-up but not an import,
# so that the modules are there from the first look-up of their folder on.
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
        package = f"{__package__}.{name}"
        _modules[name] = importlib.import_module(package)
        for module_name in _NAMES:
            _modules[name, module_name] = importlib.import_module(
                f"{package}.{module_name}"
            )
    return _modules[name]


def module(name):
    """The module of that name, one of `_NAMES`, for the current backend."""
    current()
    return _modules[keras.backend.backend(), name]
