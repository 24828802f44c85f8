"""How a call is described to the core: see `source/core.h`."""

import struct

COMPLEX, PER_STEP, REVERSE, FLOAT64 = 1, 2, 4, 8


def flags_of(decay, reverse):
    """The flags of a call, but for the number type."""
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (decay[0].ndim == 3)
        + REVERSE * bool(reverse)
    )


def bits_of(number):
    """A float as the core takes it among its sizes, which are integers."""
    return struct.unpack("q", struct.pack("d", number))[0]


def number_of(bits):
    """The inverse of `bits_of`."""
    return struct.unpack("d", struct.pack("q", bits))[0]
