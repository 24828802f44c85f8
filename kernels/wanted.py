"""Which gradients an operation computes, and which it returns."""


def replace_unwanted(gradients, wanted, replace):
    """The gradients; each unwanted one `g` becomes `replace(g)`."""
    return [
        gradient if one else replace(gradient)
        for gradient, one in zip(gradients, wanted)
    ]


def response_gradients(needed):
    """The gradients to compute, so that the needed ones are there.

    Args:
        needed: for each argument, whether its gradient is needed.

    Returns:
        A tuple of booleans. The core computes those of A, B and dt together,
        and that of C in any case.
    """
    *systems, _ = needed
    return *[any(systems)] * len(systems), True
