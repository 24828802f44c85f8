"""Real and complex numbers as tuples of float tensors.

A real quantity is `(x,)`, a complex one `(real, imag)`. A scan written for such
tuples serves both fields, and complex dtypes, which some backends handle badly,
never reach a backend. All functions but `powers` and `adjoint` use only Python
operators, so they accept the tensors of every framework.
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
    """The complex conjugate; the identity on real numbers."""
    return a if len(a) == 1 else (a[0], -a[1])


def reciprocal(a):
    """`1 / a`."""
    if len(a) == 1:
        return (1.0 / a[0],)
    # Squares of small numbers would underflow.
    # XLA would turn two divisions into one by a product, which underflows too.
    inverse = 1.0 / largest_part(a)
    real, imag = a[0] * inverse, a[1] * inverse
    square = real * real + imag * imag
    return real / square * inverse, -imag / square * inverse


def largest_part(a):
    """max(|real|, |imag|), or 1 for zero, without a gradient."""
    real, imag = (ops.abs(ops.stop_gradient(part)) for part in a)
    # Not `ops.maximum`, which is float32 on PyTorch.
    largest = ops.where(real > imag, real, imag)
    return ops.where(largest > 0, largest, ops.ones_like(largest))


def adjoint(a):
    """The conjugate transpose of the last two axes."""
    return conjugate(tuple(ops.swapaxes(part, -1, -2) for part in a))


def carried(product, state, where):
    """`product * state`, but zero wherever `state` is zero.

    The product of many decays may overflow, and infinity times a zero state
    would be NaN.

    Args:
        product, state: numbers of the same field.
        where: the framework's `where(condition, if_true, if_false)`.
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
    """The powers 1, z, z^2, ... of real or complex numbers z.

    Repeated squaring needs few operations and loses few digits.

    Args:
        numbers: tuple of one tensor (real) or two (complex), (..., n).
        count: integer, the number of powers.

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
        # Compute no higher power than needed: an infinite one would turn
        # gradients into NaN.
        kept = min(length, count - length)
        more = multiply(tuple(part[..., :kept, :] for part in result), square)
        result = tuple(
            ops.concatenate(parts, axis=-2) for parts in zip(result, more)
        )
        length += kept
        if length < count:
            square = multiply(square, square)
    return result
