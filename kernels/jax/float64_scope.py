"""JAX's switch for float64, as a scope."""

import jax


def float64_scope(enabled):
    """A scope in which JAX has float64, or has not.

    Without it, JAX computes in float32 whatever is asked for; with it, integers
    have 64 bits too, which the TPU's compiler of Pallas kernels refuses.
    """
    scope = getattr(jax, "enable_x64", None)
    if scope is None:  # JAX before 0.8
        from jax.experimental import enable_x64 as scope
    return scope(enabled)
