"""A warning about numbers that grow beyond all bounds."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp

from keras_linrec.kernels.check_bounded import LARGEST
from keras_linrec.kernels.registry import exporting


def require_bounded(tensor, message):
    """What `keras_linrec.kernels.check_bounded` says."""
    if exporting():
        return tensor
    bounded = jnp.max(jnp.abs(jax.lax.stop_gradient(tensor))) < LARGEST
    if not isinstance(bounded, jax.core.Tracer):
        # Outside of a compiled function, a condition is compiled each time.
        _warn(message, bounded)
        return tensor
    jax.lax.cond(
        bounded,
        lambda bounded: None,
        partial(jax.debug.callback, partial(_warn, message)),
        bounded,
    )
    return tensor


def _warn(message, bounded):
    # Under `vmap` both ways out of the condition are taken.
    if not bounded:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
