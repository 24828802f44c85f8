"""The hot path, one folder per way of running it.

Layers never import this package: they call `keras_linrec.ops`, whose doors
in `ops/scan.py` ask `keras_linrec.kernels.select` for an implementation.
"""

from keras_linrec.kernels.registry import KERNELS as KERNELS
from keras_linrec.kernels.registry import available as available
from keras_linrec.kernels.registry import (
    plain_nonlinear_scan as plain_nonlinear_scan,
)
from keras_linrec.kernels.registry import select as select
