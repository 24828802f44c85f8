"""The C++ core on JAX: differentiable functions of its calls.

Importing this module builds and loads the library.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.custom_derivatives import custom_vjp_primal_tree_values

from keras_linrec.kernels.jax.core_calls import run_call
from keras_linrec.kernels.jax.manual_axes import alike
from keras_linrec.kernels.jax.pull_back import pull_back
from keras_linrec.kernels.native.gradients import from_kept
from keras_linrec.kernels.native.gradients import gradient_arguments
from keras_linrec.kernels.native.gradients import kept_places
from keras_linrec.kernels.native.gradients import of_all_arguments
from keras_linrec.kernels.native.gradients import second_gradient
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import with_cotangents
from keras_linrec.kernels.operations import native_functions


def run(call, *quantities):
    """The results of a native call that have cotangents."""
    arrays = flatten(quantities)
    traced = any(isinstance(part, jax.core.Tracer) for part in arrays)
    return (_results if traced else _compiled)(call, arrays)


def _results(call, arrays):
    like = arrays[0]
    arrays = [
        jnp.zeros((0, 0), like.dtype) if part is None else part
        for part in arrays
    ]
    backward = call.operation.backward
    function = _by_need if backward.wanted else _plainly
    return with_cotangents(call, function(call, *alike(arrays)))


# Outside `jit`, JAX reads the signatures of a function with a gradient of its
# own in every call: a short scan took 2.5 ms of CPU time, and takes 0.8 as one
# program. Within another program this one leaves no trace.
_compiled = jax.jit(_results, static_argnums=0, inline=True)


def _forward(call, *arrays):
    return run_call(call, arrays)


_plainly = jax.custom_vjp(_forward, nondiff_argnums=(0,))
# Tells which arguments need a cotangent.
_by_need = jax.custom_vjp(_forward, nondiff_argnums=(0,))


def _remember(call, *arrays):
    """The results, and what the gradient needs.

    It calls the function that it belongs to, because that may be
    differentiated once more.
    """
    results = _plainly(call.with_all_steps(), *arrays)
    kept = _kept(call, arrays, results)
    if "keep" in call.operation.attributes and not call.number("keep"):
        outputs, *others = results
        results = [outputs[:, :0], *others]
    return results, kept


def _kept(call, arrays, results):
    everything = [*arrays, *results]
    return tuple(everything[place] for place in kept_places(call))


def _pull_back(call, kept, cotangents, wanted=None):
    given = gradient_arguments(call, *from_kept(call, kept), cotangents)
    gradients = _gradient(call, wanted, *given)
    return tuple(of_all_arguments(call, gradients, wanted))


_plainly.defvjp(_remember, _pull_back)


def _remember_needs(call, *arrays):
    wanted = call.operation.backward.wanted_for(
        part.perturbed for part in arrays
    )
    arrays = custom_vjp_primal_tree_values(arrays)
    results = _by_need(call, *arrays)
    return results, (_Wanted(wanted), _kept(call, arrays, results))


def _pull_back_needs(call, kept, cotangents):
    needs, kept = kept
    cotangents = list(map(_dense, cotangents))
    return _pull_back(call, kept, cotangents, needs.wanted)


_by_need.defvjp(_remember_needs, _pull_back_needs, symbolic_zeros=True)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Wanted:
    """Booleans that residuals can hold: JAX does not trace them."""

    wanted: tuple


def _dense(cotangent):
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    return jnp.zeros(cotangent.shape, cotangent.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradient(call, wanted, *given):
    """The gradient of a call; those that are not wanted have no elements."""
    # Cotangents are intermediate results of the program and seldom read twice,
    # so results overwrite them where they may. Measured for a scan at
    # (16, 4096, 256) within a larger program: 41 ms for the whole instead of
    # 51. The forward pass is faster with memory of its own, 50 ms instead of
    # 64: XLA would first copy arguments of the program into small pages, while
    # our new arrays use large ones. A training step of LipschitzRNN(128) at
    # (16, 2048, 64) with a mask takes 1.00 of the CPU time without one, and
    # 1.08 with all moves of steps in place.
    return run_call(call.backward, given, wanted, in_place=True)


def _remember_gradient(call, wanted, *given):
    return _gradient(call, wanted, *given), given


def _pull_back_gradient(call, wanted, given, cotangents):
    return tuple(second_gradient(pull_back, call, given, cotangents, wanted))


_gradient.defvjp(_remember_gradient, _pull_back_gradient)


FUNCTIONS = native_functions(run)
