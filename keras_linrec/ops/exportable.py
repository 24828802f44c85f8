"""The kernels' export rules, for layers, which do not import kernels."""

from keras_linrec.kernels.exporting import any_batch as any_batch
from keras_linrec.kernels.exporting import by_steps as by_steps
from keras_linrec.kernels.exporting import cuts_wrongly as cuts_wrongly
from keras_linrec.kernels.exporting import (
    has_factorisations as has_factorisations,
)
from keras_linrec.kernels.exporting import with_fixed_sizes as with_fixed_sizes
