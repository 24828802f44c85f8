"""What makes of a kernel and its gradient's a function for `jax.grad`."""

from functools import partial

import jax


def twice_differentiable(
    forward, remember, backward, plain_backward, settings=1, seen=None
):
    """`forward`, with a gradient by `backward`, and derivatives of any order.

    Args:
        forward: `forward(*settings, *arguments)`, the results.
        remember: what a call that is differentiated runs, on the same
            arguments: it returns the results and what `backward` keeps of
            them and the arguments. It calls the function that is made here,
            because that may be differentiated once more.
        backward: `backward(*settings, kept, cotangents)`, a tuple of the
            arguments' cotangents.
        plain_backward: the same by operations that JAX differentiates. Where
            a kept result is a function of kept arguments, it may take the
            arguments alone: what hangs on the result is in their gradient.
        settings: how many arguments come first that are no arrays.
        seen: the number of results that have cotangents. Those behind them
            are for `backward` alone. Defaults to `None`, all.
    """
    places = tuple(range(settings))
    function = jax.custom_vjp(forward, nondiff_argnums=places)
    gradient = jax.custom_vjp(backward, nondiff_argnums=places)

    def pull_back(*given):
        *given, cotangents = given
        return gradient(
            *given, cotangents if seen is None else cotangents[:seen]
        )

    def remember_all(*given):
        return gradient(*given), given[settings:]

    def pull_back_gradient(*given):
        *fixed, arguments, cotangents = given
        plain = partial(plain_backward, *fixed)
        return jax.vjp(plain, *arguments)[1](cotangents)

    function.defvjp(remember, pull_back)
    gradient.defvjp(remember_all, pull_back_gradient)
    return function
