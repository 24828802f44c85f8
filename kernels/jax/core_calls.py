"""Calls of the C++ core as XLA FFI targets.

Importing this module builds and loads the library.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from keras_linrec.kernels import registry
from keras_linrec.kernels.jax.batch_partitioning import by_rows
from keras_linrec.kernels.jax.build_flags import require_ffi
from keras_linrec.kernels.jax.lowering import native_or_portable
from keras_linrec.kernels.jax.pull_back import pull_back
from keras_linrec.kernels.jax.scan import portable
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native.gradients import plain_gradient
from keras_linrec.kernels.native.gradients import plain_results
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import each_tensor
from keras_linrec.kernels.native.table import operations
from keras_linrec.kernels.native.table import result_shapes
from keras_linrec.kernels.native.table import sizes_of
from keras_linrec.kernels.operations.final_state import with_final_state


def _register(path):
    """Tell XLA about the library's handler, a target for each operation."""
    library = ctypes.CDLL(path)
    for operation in operations().values():
        if operation.on_cpu:
            target = f"keras_linrec_{operation.name}"
            register(library.keras_linrec_xla_cpu, target, "cpu")
    return library


def register(handler, target, platform):
    """Tell XLA that a handler of the library runs an operation."""
    jax.ffi.register_ffi_target(
        target, jax.ffi.pycapsule(handler), platform=platform
    )


require_ffi()
library = build.load("jax", _register)

# For operations that run on NVIDIA GPUs, what makes their form there of a
# `CoreCall`: `cuda.py` adds them.
on_cuda = {}


def run_call(call, arrays, wanted=None, in_place=False):
    """The results of a call of the core, a flat list.

    `jax.vmap` gives all arrays leading axes, which the core treats as separate
    systems.

    Args:
        call: `Call`.
        arrays: flat list of its arguments.
        wanted: which results to compute. The others have no elements. Defaults
            to `None`, all.
        in_place: whether results may take the memory of the arguments that
            they may overwrite.
    """
    shapes = tuple(array.shape for array in arrays)
    # The sizes of a program that is exported may be symbols, which need not
    # compare.
    if all(isinstance(size, int) for shape in shapes for size in shape):
        sizes_of(call, shapes)
    dtypes = sorted({str(array.dtype) for array in arrays})
    if dtypes not in (["float32"], ["float64"]):
        raise TypeError(
            f"`{call.name}` expects arrays that are all float32 or all "
            f"float64. Received: dtypes={dtypes}"
        )
    results = [
        jax.ShapeDtypeStruct(shape, arrays[0].dtype)
        for shape in result_shapes(call, shapes, wanted)
    ]
    core = CoreCall(call, _aliases(call) if in_place else ())
    rows = _rows(call, wanted)
    natives = (("cpu", _OnRows(core, tuple(results), rows)),)
    if call.name in on_cuda:
        run = on_cuda[call.name](core)
        natives += (("cuda", _OnRows(run, tuple(results), rows)),)
    plain = _PortableCall(call, tuple(results), wanted)
    return native_or_portable(natives, plain, results, list(arrays))


def _aliases(call):
    """Pairs of indices: an argument, and the result that may overwrite it."""
    arguments = [
        one.name for one in each_tensor(call.operation.arguments, call.flags)
    ]
    results = each_tensor(call.operation.results, call.flags)
    return tuple(
        # The same part of the argument.
        (arguments.index(one.reuses) + place - results.index(one), place)
        for place, one in enumerate(results)
        if one.reuses
    )


def _rows(call, wanted):
    """Which arguments and results have the rows of a batch, or `None`."""
    flags = call.flags
    takes, gives = (
        tuple(one.has_rows(flags) for one in each_tensor(side, flags))
        for side in (call.operation.arguments, call.operation.results)
    )
    if not any(takes):
        return None
    if wanted is not None:
        gives = tuple(has and one for has, one in zip(gives, wanted))
    return takes, gives


@dataclass(frozen=True)
class CoreCall:
    """A call of the core: a function of shapes of results, and flat arrays."""

    call: Call
    aliases: tuple

    def __call__(self, shapes, *arrays):
        return self.run(f"keras_linrec_{self.call.name}", shapes, arrays)

    def run(self, target, shapes, arrays, call=None):
        """Call a target, which may run an operation of another `Call`."""
        call = call or self.call
        return jax.ffi.ffi_call(
            target,
            list(shapes),
            vmap_method="broadcast_all",
            input_output_aliases=dict(self.aliases) or None,
        )(
            *arrays,
            operation=call.operation.index,
            flags=call.flags,
            attributes=np.array(call.encoded(), "int64"),
        )


@dataclass(frozen=True)
class _OnRows:
    """Such a function, of which each device computes the rows that it holds."""

    run: Callable
    results: tuple
    rows: tuple | None

    def __call__(self, *arguments):
        if self.rows is None:
            return self.run(list(self.results), *arguments)
        return by_rows(self.run, arguments, list(self.results), self.rows)


# What plain forms read of a kernel.
_PORTABLE = registry.Kernel(scan=with_final_state(portable))


@dataclass(frozen=True)
class _PortableCall:
    """The same call in portable form.

    It runs in programs that are lowered for another platform, or for a file.
    Forward and backward pass run on the same platform, so that checkpoints,
    which the gradient of this form does not read, may be zeros.
    """

    call: Call
    results: tuple
    wanted: tuple | None

    def __call__(self, *arrays):
        if self.call.operation.is_gradient:
            return plain_gradient(
                pull_back, _PORTABLE, self.call.forward, arrays, self.wanted
            )
        found = plain_results(_PORTABLE, self.call, arrays)
        return [
            *found,
            *(
                jnp.zeros(checkpoints.shape, checkpoints.dtype)
                for checkpoints in self.results[len(found) :]
            ),
        ]
