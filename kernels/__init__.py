"""The hot path, one folder per implementation.

Layers never import this package. They call `keras_linrec.ops`, where
`ops/dispatch.py` describes each call as a `Case` and runs the implementation
that `resolver.py` selects for it.
"""

import keras

from keras_linrec.kernels import backends
from keras_linrec.kernels import exporting
from keras_linrec.kernels.registry import available
from keras_linrec.kernels.resolver import explain
from keras_linrec.settings import KERNELS

__all__ = [
    "KERNELS",
    "available",
    "explain",
]

exporting.open_scope_in_keras()
if keras.backend.backend() in backends.BACKENDS:
    # Importing it tells the backend's compiler about our settings.
    backends.current()
