"""A loop over time for any step function."""

import jax.numpy as jnp
from jax import lax


def loop(step, sequences, state, constants):
    """The `loop` of `keras_linrec.kernels.operations.nonlinear_recurrence`."""

    def body(state, items):
        state = step(state, items, constants)
        return state, state

    items = tuple(jnp.swapaxes(part, 0, 1) for part in sequences)
    return jnp.swapaxes(lax.scan(body, state, items)[1], 0, 1)
