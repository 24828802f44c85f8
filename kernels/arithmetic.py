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
