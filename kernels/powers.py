"""Powers of a decay that are as precise as their dtype.

Repeated squaring in float32 doubles a rounding each time: the 64th power is off
by a millionth. A state that is multiplied by a rounded power again and again
loses more with every block.
"""

from keras import backend
from keras import ops

from keras_linrec.complex_pairs import powers


def in_float64(numbers, count):
    """`powers_with_remainder` of the backends, by way of float64."""
    wide = powers(tuple(ops.cast(part, "float64") for part in numbers), count)
    dtype = backend.standardize_dtype(numbers[0].dtype)
    result = tuple(ops.cast(part, dtype) for part in wide)
    remainder = (
        ops.cast(
            ops.stop_gradient(part[-1] - ops.cast(rounded[-1], "float64")),
            dtype,
        )
        for part, rounded in zip(wide, result)
    )
    return result, tuple(remainder)


def in_own_precision(numbers, count):
    """The same where there is no float64, with a remainder of zero."""
    result = powers(numbers, count)
    return result, tuple(ops.zeros_like(part[-1]) for part in result)
