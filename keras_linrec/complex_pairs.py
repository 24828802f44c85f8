"""Real and complex numbers as tuples of float tensors.

A real quantity is `(x,)`, a complex one `(real, imag)`. Written once on such
tuples, a scan serves both fields, and no complex dtype ever reaches a backend
that handles it badly. All but `powers` and `adjoint` use Python operators only,
and so work on the tensors of every framework.
"""

from keras import ops


def multiply(a, b):
    """`a * b` for two numbers of the same field."""
    if len(a) == 1:
        return (a[0] * b[0],)
    return (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def multiply_add(a, b, c):
    """`a * b + c` for three numbers of the same field."""
    return tuple(x + y for x, y in zip(multiply(a, b), c))


def conjugate(a):
    """The complex conjugate; a real number is its own."""
    return a if len(a) == 1 else (a[0], -a[1])


def reciprocal(a):
    """`1 / a`."""
    if len(a) == 1:
        return (1.0 / a[0],)
    square = a[0] * a[0] + a[1] * a[1]
    return a[0] / square, -a[1] / square


def matmul(a, b):
    """`a @ b` for two matrices of the same field."""
    if len(a) == 1:
        return (a[0] @ b[0],)
    return a[0] @ b[0] - a[1] @ b[1], a[0] @ b[1] + a[1] @ b[0]


def adjoint(a):
    """The conjugate transpose of the last two axes."""
    return conjugate(tuple(ops.swapaxes(part, -1, -2) for part in a))


def carried(product, state, where):
    """`product * state`, which is zero where the state is.

    Over silence the product of many decays may overflow, and infinity times
    zero would be NaN.

    Args:
        product, state: numbers of the same field.
        where: the framework's `where(condition, one, other)`.
    """
    is_zero = state[0] == 0
    if len(state) == 2:
        is_zero = is_zero & (state[1] == 0)
    pairs = zip(state, multiply(product, state))
    return tuple(where(is_zero, zero, part) for zero, part in pairs)


def carried_add(product, state, addend, where):
    """`carried(product, state, where) + addend`."""
    return tuple(x + y for x, y in zip(carried(product, state, where), addend))


def powers(numbers, count):
    """1, z, z^2, ... of real or complex numbers z.

    By squaring, which takes few operations and loses few digits.

    Args:
        numbers: tuple of one tensor (real) or two (complex), (..., n).
        count: integer.

    Returns:
        A tuple of tensors (..., count, n).
    """
    square = tuple(ops.expand_dims(part, -2) for part in numbers)
    result = (
        ops.ones_like(square[0]),
        *(ops.zeros_like(part) for part in square[1:]),
    )
    length = 1
    while length < count:
        # No power more than wanted: an infinite one would spoil gradients.
        kept = min(length, count - length)
        more = multiply(tuple(part[..., :kept, :] for part in result), square)
        result = tuple(
            ops.concatenate(parts, axis=-2) for parts in zip(result, more)
        )
        length += kept
        if length < count:
            square = multiply(square, square)
    return result
