"""Differentiable functions made of a kernel and its gradient."""

import jax


def twice_differentiable(
    forward,
    remember,
    backward,
    plain_backward,
    settings=1,
    differentiated=None,
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
        differentiated: the number of results that have cotangents. Later
            results are only saved for `backward`. Defaults to `None`, all.
    """
    places = tuple(range(settings))
    function = jax.custom_vjp(forward, nondiff_argnums=places)
    gradient = jax.custom_vjp(backward, nondiff_argnums=places)

    def pull_back(*given):
        *given, cotangents = given
        return gradient(*given, cotangents[:differentiated])

    def remember_all(*given):
        return gradient(*given), given[settings:]

    def pull_back_gradient(*given):
        *fixed, arguments, cotangents = given

        def plain(*arguments):
            return plain_backward(*fixed, *arguments)

        return jax.vjp(plain, *arguments)[1](cotangents)

    function.defvjp(remember, pull_back)
    gradient.defvjp(remember_all, pull_back_gradient)
    return function
