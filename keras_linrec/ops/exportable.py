"""What layers have to know of files that are being written."""

from keras_linrec.kernels.exporting import (
    require_exportable as require_exportable,
)
from keras_linrec.kernels.exporting import with_fixed_sizes as with_fixed_sizes
