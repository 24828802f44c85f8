"""Recurrent layers for very long sequences, on Keras 3."""

from types import ModuleType

from keras_linrec import activations
from keras_linrec import analysis
from keras_linrec import config
from keras_linrec import constraints
from keras_linrec import initializers
from keras_linrec import kernels
from keras_linrec import layers
from keras_linrec import models
from keras_linrec import ops
from keras_linrec import optimizers
from keras_linrec import saving
from keras_linrec.export import export_step
from keras_linrec.version import __version__

__all__ = [
    "__version__",
    "activations",
    "analysis",
    "config",
    "constraints",
    "export_step",
    "initializers",
    "kernels",
    "layers",
    "models",
    "ops",
    "optimizers",
    "saving",
]


def _complete_public_names_alone():
    """So that completion, which asks `dir`, shows no imports of a module."""
    for name in __all__:
        module = globals()[name]
        if isinstance(module, ModuleType):
            module.__dir__ = lambda names=tuple(module.__all__): names


def __dir__():
    return __all__


_complete_public_names_alone()
