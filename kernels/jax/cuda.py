"""The CUDA core on JAX.

The calls are those of the C++ core, `native.py`, which have another form in
programs for NVIDIA GPUs. Importing this module loads the CUDA core, or raises
where it does not run.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from keras_linrec.kernels.jax import core_calls
from keras_linrec.kernels.jax.native import FUNCTIONS as FUNCTIONS
from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.native.table import operations
from keras_linrec.kernels.operations import nonlinear_recurrence as recurrence
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands

cuda.core()


@dataclass(frozen=True)
class _Same:
    """A function that takes the arrays of the C++ core's."""

    call: core_calls.CoreCall

    def __call__(self, results, *arrays):
        return _queue(self.call, self.call.call.name, results, *arrays)


@dataclass(frozen=True)
class _NonlinearScan:
    """The nonlinear scan; the inputs' part is one product for all steps."""

    call: core_calls.CoreCall

    def __call__(self, results, *arrays):
        given = recurrence.sequential_operands(Operands(*arrays))
        return _queue(self.call, "cuda_nonlinear_scan", results, *given)


@dataclass(frozen=True)
class _NonlinearScanBackward:
    """Its gradient: only the cotangents of the states are sequential."""

    call: core_calls.CoreCall

    def __call__(self, _, *arrays):
        def sequential(factors, *others):
            state = others[-1]
            shape = *factors.shape[:3], state.shape[1]
            results = [
                jax.ShapeDtypeStruct(shape, state.dtype),
                jax.ShapeDtypeStruct(state.shape, state.dtype),
            ]
            name = "cuda_nonlinear_scan_backward"
            return _queue(self.call, name, results, factors, *others)

        return recurrence.cotangents(
            self.call.call, arrays, sequential, _slopes_of
        )


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    value, pull_back = jax.vjp(function, *products)
    return value, pull_back(jnp.ones_like(value))


def _queue(core, operation, results, *arrays):
    """Run an operation of the CUDA core, with a core call's attributes."""
    target = target_of(core.call.name)
    call = core.call._replace(name=operation)
    return core.run(target, results, arrays, call)


def target_of(name):
    """The name of an operation in programs for GPUs."""
    return f"keras_linrec_cuda_{name}"


FORMS = {
    **{one.name: _Same for one in operations().values() if one.on_cuda},
    "nonlinear_scan": _NonlinearScan,
    "nonlinear_scan_backward": _NonlinearScanBackward,
}


def register(handler, platform):
    """Tell XLA that a handler of the library runs the CUDA core's operations.

    Args:
        handler: a function of the library.
        platform: where programs that call it run.
    """
    for name in FORMS:
        core_calls.register(handler, target_of(name), platform)


register(core_calls.library.keras_linrec_xla_cuda, "CUDA")
core_calls.on_cuda.update(FORMS)
