"""The CUDA core on JAX.

The calls are those of the C++ core, `native_scans.py`, which have another form
in programs for NVIDIA GPUs. Importing this module loads the CUDA core, or
raises where it does not run.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from keras_linrec.kernels.jax import core_calls
from keras_linrec.kernels.jax.native_scans import (
    nonlinear_scan as nonlinear_scan,
)
from keras_linrec.kernels.jax.native_scans import scan as scan
from keras_linrec.kernels.jax.native_systems import (
    impulse_response as impulse_response,
)
from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.native.call_encoding import dynamics_of
from keras_linrec.kernels.native.call_encoding import number_of
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import all_steps
from keras_linrec.kernels.operations.nonlinear_recurrence import drive_of
from keras_linrec.kernels.operations.nonlinear_recurrence import factors_of
from keras_linrec.kernels.operations.nonlinear_recurrence import matrices_of
from keras_linrec.kernels.operations.nonlinear_recurrence import (
    state_cotangents,
)
from keras_linrec.kernels.operations.nonlinear_recurrence import states_before

cuda.core()


def handler(function, suffix=""):
    """The XLA FFI handler of a function of the CUDA core."""
    name = cuda.name_of(function, f"{suffix}_xla")
    return jax.ffi.pycapsule(getattr(core_calls.library, name))


@dataclass(frozen=True)
class _Same:
    """A function that takes the arrays of the C++ core's."""

    call: core_calls.CoreCall
    tree: object

    def __call__(self, results, *arguments):
        return _queue(self.call, results, *arguments)


@dataclass(frozen=True)
class _NonlinearScan:
    """The nonlinear scan; the inputs' part is one product for all steps."""

    call: core_calls.CoreCall
    tree: object

    def __call__(self, results, *arguments):
        operands = Operands(*jax.tree.unflatten(self.tree, arguments))
        return _queue(
            self.call,
            results,
            drive_of(operands),
            jnp.concatenate(matrices_of(operands), axis=1),
            operands.step_size,
            operands.resets,
            operands.initial_state,
        )


@dataclass(frozen=True)
class _NonlinearScanBackward:
    """Its gradient: only the cotangents of the states are sequential."""

    call: core_calls.CoreCall
    tree: object

    def __call__(self, _, *arguments):
        operands, outputs, cotangents = jax.tree.unflatten(self.tree, arguments)
        operands = Operands(*operands)
        attributes = dict(self.call.attributes)
        dynamics = dynamics_of(
            attributes["flags"], number_of(attributes["leak"])
        )
        state = operands.initial_state
        before = states_before(operands, outputs)
        factors = factors_of(dynamics, operands, before, _slopes_of)
        batch, stages, time, _ = factors.shape
        shape = batch, stages, time, state.shape[1]
        d_slopes, d_initial_state = _queue(
            self.call,
            [
                jax.ShapeDtypeStruct(shape, outputs.dtype),
                jax.ShapeDtypeStruct(state.shape, outputs.dtype),
            ],
            factors,
            jnp.concatenate(matrices_of(operands), axis=1).T,
            operands.resets,
            *cotangents,
        )
        steps = partial(all_steps, dynamics, before=before)
        _, pull_back = jax.vjp(steps, operands)
        ((*gradients, _),) = pull_back(state_cotangents(dynamics, d_slopes))
        return [*gradients, d_initial_state]


def _slopes_of(function, products):
    """The value of an elementwise function, and its derivative by each."""
    value, pull_back = jax.vjp(function, *products)
    return value, pull_back(jnp.ones_like(value))


def _queue(call, results, *arguments):
    return jax.ffi.ffi_call(
        cuda.name_of(call.name),
        list(results),
        vmap_method="broadcast_all",
        input_output_aliases=dict(call.aliases) or None,
    )(*arguments, **dict(call.attributes))


FORMS = {
    "keras_linrec_scan": _Same,
    "keras_linrec_scan_backward": _Same,
    "keras_linrec_impulse_response": _Same,
    "keras_linrec_impulse_response_backward": _Same,
    "keras_linrec_nonlinear_scan": _NonlinearScan,
    "keras_linrec_nonlinear_scan_backward": _NonlinearScanBackward,
}

for _function in FORMS:
    jax.ffi.register_ffi_target(
        cuda.name_of(_function), handler(_function), platform="CUDA"
    )
core_calls.on_cuda.update(FORMS)
