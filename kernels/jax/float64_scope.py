"""JAX's switch for float64, as a scope."""

import jax

# Older versions lower a program's constants as they are outside the scope, in
# 32 bits, and so fail on those that it has in 64.
LOWERS_FLOAT64_SCOPE = jax.__version_info__ >= (0, 7, 2)


def float64_scope(enabled):
    """A scope in which JAX has float64, or has not.

    Without it, JAX computes in float32 whatever is asked for; with it, integers
    have 64 bits too, which the TPU's compiler of Pallas kernels refuses.
    """
    scope = getattr(jax, "enable_x64", None)
    if scope is None:  # JAX before 0.8
        from jax.experimental import enable_x64 as scope
    return scope(enabled)
