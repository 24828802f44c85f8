"""A loop over time for any step function."""

import jax.numpy as jnp
from jax import lax

from keras_linrec.kernels.jax.manual_axes import alike


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""

    def body(state, items):
        state = step(state, items, constants)
        return state, state

    sequences, state, constants = alike((tuple(sequences), state, constants))
    items = tuple(jnp.swapaxes(part, 0, 1) for part in sequences)
    return jnp.swapaxes(lax.scan(body, state, items)[1], 0, 1)
