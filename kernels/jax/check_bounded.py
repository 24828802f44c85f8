"""A warning about numbers that diverge."""

import warnings
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from keras_linrec.kernels.check_bounded import LARGEST
from keras_linrec.kernels.exporting import exporting
from keras_linrec.kernels.jax.lowering import native_or_portable


def require_bounded(tensor, message):
    """See `keras_linrec.kernels.check_bounded`."""
    if not isinstance(tensor, jax.core.Tracer):
        # Outside a compiled function, a `cond` would be compiled each time.
        _warn(message, jnp.max(jnp.abs(tensor), initial=0) < LARGEST)
        return tensor
    # Converters that work by operation do not know our primitive.
    return tensor if exporting() else _checked(message, tensor)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _checked(message, tensor):
    """Return the tensor, because JAX drops a check whose result is unused."""
    (tensor,) = native_or_portable(
        ((None, _Check(message)),),
        _unchecked,
        [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)],
        [tensor],
    )
    return tensor


@_checked.defjvp
def _checked_tangent(message, primals, tangents):
    return _checked(message, *primals), *tangents


@dataclass(frozen=True)
class _Check:
    message: str

    def __call__(self, tensor):
        bounded = jnp.max(jnp.abs(tensor), initial=0) < LARGEST
        jax.lax.cond(
            bounded,
            lambda bounded: None,
            partial(jax.debug.callback, partial(_warn, self.message)),
            bounded,
        )
        return [tensor]


def _unchecked(tensor):
    # A file cannot contain a callback into Python.
    return [tensor]


def _warn(message, bounded):
    # Under `vmap` both branches of the `cond` run.
    if not bounded:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
