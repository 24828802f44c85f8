"""Checks of arguments, which raise errors that say what was expected."""

import numbers

# What is larger was not meant.
_LARGEST_COUNT = 2**24


def require_count(name, value, optional=False):
    """Raise unless `value` is a positive integer."""
    if optional and value is None:
        return
    whole = isinstance(value, numbers.Integral) and value is not True
    if not whole or value < 1:
        wanted = "a positive integer" + (" or None" if optional else "")
        raise ValueError(
            f"`{name}` should be {wanted}. Received: {name}={value}"
        )
    if value > _LARGEST_COUNT:
        raise ValueError(
            f"`{name}` should be at most {_LARGEST_COUNT}. "
            f"Received: {name}={value}"
        )


def require_bool(name, value, optional=False):
    """Raise unless `value` is true or false."""
    if value is True or value is False or (optional and value is None):
        return
    wanted = "True, False or None" if optional else "True or False"
    raise ValueError(f"`{name}` should be {wanted}. Received: {name}={value}")


def require_between(name, value, low, high, ends="[]"):
    """Raise unless `value` is in the interval, with or without its ends."""
    fits = (
        isinstance(value, numbers.Real)
        and (low <= value if ends[0] == "[" else low < value)
        and (value <= high if ends[1] == "]" else value < high)
    )
    if not fits:
        raise ValueError(
            f"`{name}` should be a number in {ends[0]}{low}, {high}{ends[1]}. "
            f"Received: {name}={value}"
        )


def check_time_deltas(shape, expected):
    """Raise unless a call's `time_deltas` have the shape expected."""
    if len(shape) != len(expected) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(shape, expected)
    ):
        names = "(batch, time) of the sequences"
        if len(expected) == 1:
            names = "(batch,) of the inputs"
        raise ValueError(
            f"`time_deltas` should have the shape {names}, {tuple(expected)}. "
            f"Received: time_deltas.shape={tuple(shape)}"
        )
