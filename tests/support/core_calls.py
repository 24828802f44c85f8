"""Calls of the C++ core on NumPy arrays, by the table of its operations."""

import numpy as np

from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import FLOAT64
from keras_linrec.kernels.native.table import by_name
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import result_shapes
from keras_linrec.kernels.native.table import sizes_of


def unwritten(shape, dtype):
    """A result before the call: a number that the core forgets is NaN."""
    return np.full(shape, np.nan, dtype)


def results_of(call, quantities, dtype, changed=None, empty=unwritten):
    """The quantities that a call returns: arrays, or tuples of their parts.

    Args:
        call: `Call`, without the number type.
        quantities: the arguments, arrays or sequences of parts, of any dtype.
        dtype: that of the call.
        changed: see `write`.
        empty: makes a result of a shape and a dtype.
    """
    shapes = result_shapes(call, [part.shape for part in flatten(quantities)])
    results = [empty(shape, dtype) for shape in shapes]
    write(call, quantities, results, changed)
    return quantities_of(call, results)


def quantities_of(call, results):
    """A flat list of a call's results as quantities."""
    operation = call.operation
    named = by_name(operation, operation.results, call.flags, results)
    return list(named.values())


def write(call, quantities, results, changed=None):
    """Run a call that writes to given results.

    Args:
        call, quantities: those of `results_of`.
        results: quantities of contiguous arrays, whose dtype is the call's, or
            of `None` for what is not to be computed.
        changed: sizes other than those of the table, by their place.
    """
    results = flatten(results)
    dtype = next(part.dtype for part in results if part is not None)
    arrays = [np.ascontiguousarray(part, dtype) for part in flatten(quantities)]
    sizes = list(sizes_of(call, tuple(array.shape for array in arrays)))
    for place, size in (changed or {}).items():
        sizes[place] = size
    core.call(
        f"keras_linrec_{call.name}",
        call.flags | FLOAT64 * (dtype == "float64"),
        sizes,
        [array.ctypes.data for array in arrays],
        [None if part is None else part.ctypes.data for part in results],
    )
