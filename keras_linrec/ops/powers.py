"""The powers of numbers."""

from keras import ops

from keras_linrec.kernels.arithmetic import multiply


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
