"""Errors in place of exported files that would be wrong."""

from keras_linrec.kernels.registry import (
    require_exportable as require_exportable,
)
