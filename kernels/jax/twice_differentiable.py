"""Differentiable functions made of a kernel and its gradient."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.custom_derivatives import custom_vjp_primal_tree_values

from keras_linrec.kernels.wanted import replace_unwanted


def twice_differentiable(
    forward,
    remember,
    backward,
    plain_backward,
    settings=1,
    differentiated=None,
    by_need=False,
):
    """`forward` with the gradient `backward`, and derivatives of any order.

    Args:
        forward: `forward(*settings, *arguments)`, which returns the results.
        remember: the forward pass of a differentiated call, on the same
            arguments. It returns the results and the residuals that
            `backward` needs. It calls the function that is made here, because
            that may be differentiated once more.
        backward: `backward(*settings, residuals, cotangents)`, which returns a
            tuple of the arguments' cotangents.
        plain_backward: the same in operations that JAX differentiates. If a
            residual is a function of other residuals, it may ignore that one:
            the gradients of the others include its part.
        settings: the number of leading arguments that are not arrays.
        differentiated: the number of results that have cotangents. The
            results after them are for `backward` alone. Defaults to `None`,
            all.
        by_need: whether `backward` takes, after the settings, a tuple of
            booleans: which arrays among the arguments need a cotangent. It
            returns an array of shape (0,) for the others. Defaults to `False`.
    """
    places = tuple(range(settings))
    function = jax.custom_vjp(forward, nondiff_argnums=places)
    if by_need:
        places = (*places, settings)
    gradient = jax.custom_vjp(backward, nondiff_argnums=places)

    def pull_back(*given):
        *given, cotangents = given
        if differentiated is not None:
            cotangents = cotangents[:differentiated]
        return gradient(*given, cotangents)

    def remember_needs(*given):
        fixed, arguments = given[:settings], given[settings:]
        wanted = tuple(part.perturbed for part in jax.tree.leaves(arguments))
        values = custom_vjp_primal_tree_values(arguments)
        results, residuals = remember(*fixed, *values)
        return results, (_Wanted(wanted), residuals)

    def pull_back_needs(*given):
        *fixed, (needs, residuals), cotangents = given
        cotangents = jax.tree.map(_dense, cotangents, is_leaf=_is_zero)
        gradients = pull_back(*fixed, needs.wanted, residuals, cotangents)
        return _masked(gradients, needs.wanted, lambda _: None)

    def remember_all(*given):
        return gradient(*given), given[len(places) :]

    def pull_back_gradient(*given):
        *fixed, arguments, cotangents = given

        def plain(*arguments):
            gradients = plain_backward(*fixed[:settings], *arguments)
            if not by_need:
                return gradients
            return _masked(gradients, fixed[-1], _nothing)

        return jax.vjp(plain, *arguments)[1](cotangents)

    if by_need:
        function.defvjp(remember_needs, pull_back_needs, symbolic_zeros=True)
    else:
        function.defvjp(remember, pull_back)
    gradient.defvjp(remember_all, pull_back_gradient)
    return function


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Wanted:
    """Booleans that residuals can hold: JAX does not trace them."""

    wanted: tuple


def _is_zero(cotangent):
    return isinstance(cotangent, SymbolicZero)


def _dense(cotangent):
    if not _is_zero(cotangent):
        return cotangent
    return jnp.zeros(cotangent.shape, cotangent.dtype)


def _nothing(gradient):
    return jnp.zeros((0,), gradient.dtype)


def _masked(gradients, wanted, replace):
    """The gradients; each unwanted one `g` becomes `replace(g)`."""
    leaves, tree = jax.tree.flatten(gradients)
    return jax.tree.unflatten(tree, replace_unwanted(leaves, wanted, replace))
