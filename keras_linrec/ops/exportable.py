"""What layers have to know of files that are being written."""

from keras_linrec.kernels.exporting import exporting as exporting
from keras_linrec.kernels.exporting import (
    require_exportable as require_exportable,
)
