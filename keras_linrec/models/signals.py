"""Units of models for signals, which start in hertz and seconds."""

import math
from itertools import accumulate
from operator import mul

from keras_linrec.models.units import UNITS
from keras_linrec.validation import require_between

FOR_SIGNALS = tuple(
    name for name, unit in UNITS.items() if hasattr(unit, "for_signals")
)


def steps_of_blocks(pool_sizes):
    """How many steps of the signal a step of each block lasts."""
    return list(accumulate(pool_sizes, mul, initial=1))


def units_for_signals(
    unit,
    arguments,
    steps,
    sampling_rate,
    longest_memory,
    shortest_memory,
    highest_frequency,
):
    """A unit for each block, which starts for the block's own rate.

    Args:
        unit: a name of `FOR_SIGNALS`.
        arguments: of every unit, by name.
        steps: for each block, how many steps of the signal one of its own is.
        sampling_rate, longest_memory, shortest_memory, highest_frequency: of
            the signal, as in the unit's `for_signals`.
    """
    if unit not in FOR_SIGNALS:
        raise ValueError(
            "`unit` should name a unit whose states start with memories, one "
            f"of {FOR_SIGNALS}. Received: unit={unit}"
        )
    require_between("sampling_rate", sampling_rate, 0, math.inf, "()")
    # Of the last block, whose steps are the longest.
    least = 2 * steps[-1] / sampling_rate
    require_between("longest_memory", longest_memory, least, math.inf, "()")
    made = []
    for count in steps:
        rate = sampling_rate / count
        given = {"highest_frequency": highest_frequency}
        if highest_frequency is not None and count > 1:
            # Averages of several steps hold no more than this.
            given["highest_frequency"] = min(highest_frequency, rate / 2)
        if shortest_memory is not None:
            # In a block of longer steps, two of them.
            least = 2 / rate if count > 1 else 0
            given["shortest_memory"] = max(shortest_memory, least)
        made.append(
            UNITS[unit].for_signals(
                sampling_rate=rate,
                longest_memory=longest_memory,
                name=unit,
                **given,
                **arguments,
            )
        )
    return made
