"""Numbers of twice float32's digits, as a float32 number and its remainder.

A state that decays by 1 - 1e-6 a step remembers a million steps, and with them
every rounding: in float32, 2^20 steps are off by 2e-3. A TPU has no float64, so
kernels carry what a float32 state has lost (Dekker 1971; Knuth, volume 2,
4.2.2).

Compilers may fuse a product and a sum into one operation that rounds once. That
changes no result here, because every product that enters `_sum` is exact: its
factors have 12 bits each.
"""

import jax.numpy as jnp
from jax import lax

from keras_linrec.complex_pairs import multiply_add as plain_multiply_add

# Clears the lower 12 of the 24 bits of a float32 number.
_UPPER_BITS = -(2**12)


def with_remainder(number):
    """A number and its remainder, zero; numbers are tuples of one or two."""
    return number, tuple(jnp.zeros_like(part) for part in number)


def add(number, addend):
    """The sum of a number with a remainder and a plain number, likewise."""
    return _transposed(
        _normal(*_sum(part, other), rest)
        for part, rest, other in zip(*number, addend)
    )


def multiply_add(factor, number, addend):
    """`factor * number + addend`, where `number` has a remainder.

    In float64, numbers have enough digits of their own, and remainders remain
    zero.
    """
    parts, rests = number
    if parts[0].dtype != jnp.float32:
        return plain_multiply_add(factor, parts, addend), rests
    if len(parts) == 1:
        terms = [[(factor[0], parts[0], rests[0])]]
    else:
        real, imag = zip(parts, rests)
        terms = [
            [(factor[0], *real), (-factor[1], *imag)],
            [(factor[0], *imag), (factor[1], *real)],
        ]
    return _transposed(_sum_of_products(*both) for both in zip(addend, terms))


def _transposed(pairs):
    """A list of (part, rest) as a tuple of parts and one of rests."""
    return tuple(zip(*pairs))


def _sum_of_products(total, terms):
    """`total` + sum of a (b + rest), as a number and its remainder."""
    error = jnp.zeros_like(total)
    for a, b, rest in terms:
        (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
        total, lost = _sum(total, a_high * b_high)
        error = error + (
            lost
            + (a_high * b_low + (a_low * b_high + (a_low * b_low + a * rest)))
        )
    return _normal(total, error, jnp.zeros_like(total))


def _sum(a, b):
    """a + b, and what rounding it has lost."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _normal(total, error, rest):
    """The float32 number nearest to the sum, and the remainder."""
    rest = error + rest
    nearest = total + rest
    return nearest, rest - (nearest - total)


def _halves(number):
    """Two numbers of 12 bits each, whose sum it is."""
    bits = lax.bitcast_convert_type(number, jnp.int32) & _UPPER_BITS
    upper = lax.bitcast_convert_type(bits, jnp.float32)
    return upper, number - upper
