"""The hot path, one folder per way of running it.

Layers never import this package: they call `keras_linrec.ops`, whose doors
in `ops/scan.py` say what is to be computed, as a `Case`, and run what
`resolver.py` finds for it.
"""

import keras

from keras_linrec.kernels import backends
from keras_linrec.kernels import exporting
from keras_linrec.kernels.registry import available as available
from keras_linrec.kernels.resolver import explain as explain
from keras_linrec.settings import KERNELS as KERNELS

exporting.open_scope_in_keras()
if keras.backend.backend() in backends.BACKENDS:
    # What its compiler is told of settings.
    backends.current()
