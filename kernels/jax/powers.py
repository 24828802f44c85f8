"""Powers of numbers that are as precise as their dtype."""

from functools import partial

import jax
import jax.numpy as jnp

from keras_linrec.complex_pairs import multiply
from keras_linrec.kernels import powers
from keras_linrec.kernels.jax.float64_scope import LOWERS_FLOAT64_SCOPE
from keras_linrec.kernels.jax.float64_scope import float64_scope


def powers_with_remainder(numbers, count):
    """See `kernels/torch`."""
    if not LOWERS_FLOAT64_SCOPE:
        return powers.in_own_precision(numbers, count)
    return _wide_powers(count, tuple(numbers))


# JAX would transpose what the scope contains outside it, in 32 bits.
@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _wide_powers(count, numbers):
    with float64_scope(True):
        return powers.in_float64(numbers, count)


@_wide_powers.defjvp
def _slopes(count, primals, tangents):
    """The derivative of z^l is l z^(l-1)."""
    result, remainder = _wide_powers(count, *primals)
    exponents = jnp.arange(1, count, dtype=result[0].dtype)[:, None]
    slopes = multiply(
        tuple(exponents * part[..., :-1, :] for part in result),
        tuple(part[..., None, :] for part in tangents[0]),
    )
    nothing = tuple(jnp.zeros_like(part[..., :1, :]) for part in result)
    slopes = tuple(
        jnp.concatenate(parts, axis=-2) for parts in zip(nothing, slopes)
    )
    return (result, remainder), (
        slopes,
        tuple(jnp.zeros_like(part) for part in remainder),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def power(exponent, number):
    """`number ** exponent`, as precise as its dtype."""
    if not LOWERS_FLOAT64_SCOPE:
        return _by_squaring(exponent, number)
    dtype = number[0].dtype
    with float64_scope(True):
        wide = tuple(part.astype("float64") for part in number)
        # Squaring doubles a rounding each time.
        result = _by_squaring(exponent, wide)
        return tuple(part.astype(dtype) for part in result)


def _by_squaring(exponent, number):
    result = None
    while exponent:
        if exponent % 2:
            result = number if result is None else multiply(result, number)
        exponent //= 2
        number = multiply(number, number) if exponent else number
    return result


@power.defjvp
def _slope(exponent, primals, tangents):
    (number,), (tangent,) = primals, tangents
    slope = (jnp.ones_like(tangent[0]), jnp.zeros_like(tangent[0]))
    if exponent > 1:
        slope = power(exponent - 1, number)
    slope = tuple(exponent * part for part in slope[: len(number)])
    return power(exponent, number), multiply(slope, tangent)
