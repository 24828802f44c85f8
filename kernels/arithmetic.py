"""Real and complex numbers as tuples of float tensors.

A real quantity is `(x,)`, a complex one `(real, imag)`. Written once on such
tuples, a scan serves both fields, and no complex dtype ever reaches a backend
that handles it badly. Only Python operators are used, so the functions work
on the tensors of every framework.
"""


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
