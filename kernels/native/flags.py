"""How a call is described to the core: see `source/core.h`."""

COMPLEX, PER_STEP, REVERSE, FLOAT64 = 1, 2, 4, 8


def flags_of(decay, reverse):
    """The flags of a call, but for the number type."""
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (decay[0].ndim == 3)
        + REVERSE * bool(reverse)
    )
