"""First and second derivatives of functions of tensors, for analysis."""

import jax
import jax.numpy as jnp


def gradient(function):
    """See `keras_linrec.ops.differentiation`."""
    return jax.jit(jax.grad(function))


def hessian_vector_product(function):
    """See `keras_linrec.ops.differentiation`."""

    # Reverse mode twice: the native kernels have no forward mode.
    def slope(tensors, vectors, constants):
        gradients = jax.grad(function)(tensors, constants)
        return sum(
            jnp.vdot(one, other) for one, other in zip(gradients, vectors)
        )

    return jax.jit(jax.grad(slope))
