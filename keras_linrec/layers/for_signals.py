"""Starting values in hertz and seconds."""

import math
from typing import Any

from keras_linrec import types
from keras_linrec.initializers import DecayLog
from keras_linrec.validation import require_between


class DecaysForSignals:
    """`for_signals` of units whose states start with decays and angles.

    `_DECAYS` names the arguments for the smallest and the largest decay.
    """

    def _initial_decays(self):
        smallest, largest = (getattr(self, name) for name in self._DECAYS)
        return DecayLog(smallest, largest, even_memories=self.even_memories)

    @classmethod
    def for_signals(
        cls,
        units: int | None = None,
        *,
        sampling_rate: float,
        longest_memory: float,
        shortest_memory: float | None = None,
        highest_frequency: float | None = None,
        **arguments: Any,
    ) -> types.Self:
        """A layer for signals, with starting values in hertz and seconds.

        A state that turns by the angle theta per step follows a frequency of
        theta sampling_rate / (2 pi) hertz. One that decays by the factor gamma
        per step remembers about 1 / (1 - gamma) steps. The states start within
        the given limits, with as many memories in each decade; training may
        leave them.

        Args:
            units: integer, the number of output features. Defaults to `None`,
                as many as the input has.
            sampling_rate: float, steps per second.
            longest_memory: float, in seconds, more than two steps: how long
                an input may matter, at most the length of a sequence.
            shortest_memory: float, in seconds, more than one step. Defaults to
                `None`, a period of `highest_frequency`, which is two steps or
                more, but at most a hundredth of `longest_memory`.
            highest_frequency: float, in hertz, at most half the sampling rate.
                Defaults to `None`, half the sampling rate.
            **arguments: other arguments of the layer.

        Returns:
            A layer.

        Raises:
            ValueError: for an argument out of its range.

        Example: sound at 8,000 samples a second. The states start with
        frequencies up to 400 Hz and remember up to half a second.

        >>> from keras_linrec.layers import RotRNN
        >>> layer = RotRNN.for_signals(
        ...     32,
        ...     sampling_rate=8000,
        ...     longest_memory=0.5,
        ...     highest_frequency=400,
        ... )
        >>> round(layer.theta_max, 4), layer.gamma_min, layer.gamma_max
        (0.3142, 0.95, 0.99975)
        """
        highest_frequency = _frequency(sampling_rate, highest_frequency)
        shortest, longest = _memory_in_steps(
            sampling_rate, shortest_memory, longest_memory, highest_frequency
        )
        smallest_decay, largest_decay = cls._DECAYS
        chosen = {
            smallest_decay: 1 - 1 / shortest,
            largest_decay: 1 - 1 / longest,
            "theta_max": 2 * math.pi * highest_frequency / sampling_rate,
            # Over so many decades uniform squares leave little at the long end.
            # Of 100,000 memories from 2 to 480,000 steps (30 s at 16 kHz) 0.3%
            # are then above 1,000 steps, and none above 100,000; drawn evenly
            # 50% and 13% are.
            "even_memories": True,
        }
        return cls(units, **chosen, **arguments)


class TimescalesForSignals:
    """`for_signals` of units whose features or states start with timescales."""

    @classmethod
    def for_signals(
        cls,
        units: int | None = None,
        *,
        sampling_rate: float,
        longest_memory: float,
        shortest_memory: float | None = None,
        highest_frequency: float | None = None,
        **arguments: Any,
    ) -> types.Self:
        """A layer for signals, with starting values in seconds.

        A feature (a state of `S5`) with the timescale dt remembers about 1 /
        dt steps. They start within the given limits; training may leave them.

        Args:
            units: integer, the number of output features. Defaults to `None`,
                as many as the input has.
            sampling_rate: float, steps per second.
            longest_memory: float, in seconds, more than two steps: how long
                an input may matter, at most the length of a sequence.
            shortest_memory: float, in seconds, more than one step. Defaults to
                `None`, a period of `highest_frequency`, which is two steps or
                more, but at most a hundredth of `longest_memory`.
            highest_frequency: float, in hertz, at most half the sampling rate.
                Defaults to `None`, half the sampling rate.
            **arguments: other arguments of the layer.

        Returns:
            A layer.

        Raises:
            ValueError: for an argument out of its range.

        Example: a heart rate once a minute, and the day before it.

        >>> from keras_linrec.layers import LSSL
        >>> layer = LSSL.for_signals(
        ...     32, sampling_rate=1 / 60, longest_memory=24 * 3600
        ... )
        >>> round(1 / layer.dt_min), round(1 / layer.dt_max, 1)
        (1440, 2.0)
        """
        shortest, longest = _memory_in_steps(
            sampling_rate,
            shortest_memory,
            longest_memory,
            _frequency(sampling_rate, highest_frequency),
        )
        return cls(units, dt_min=1 / longest, dt_max=1 / shortest, **arguments)


def _frequency(sampling_rate, highest_frequency):
    """The highest frequency in hertz, if it is in range."""
    require_between("sampling_rate", sampling_rate, 0, math.inf, "()")
    if highest_frequency is None:
        return sampling_rate / 2
    require_between(
        "highest_frequency", highest_frequency, 0, sampling_rate / 2, "(]"
    )
    return highest_frequency


def _memory_in_steps(
    sampling_rate, shortest_memory, longest_memory, highest_frequency
):
    """The shortest and the longest memory in steps, if they are in range."""
    require_between(
        "longest_memory", longest_memory, 2 / sampling_rate, math.inf, "()"
    )
    longest = longest_memory * sampling_rate
    if shortest_memory is None:
        # What happens within a period of the fastest part of the signal needs
        # states that forget as fast. A hundredth of the longest memory alone
        # leaves speech (16 kHz, 30 s) without any state below 0.3 s, where
        # its sounds are; and a slow signal has no use for less.
        period = sampling_rate / highest_frequency
        return max(min(period, longest / 100), 2.0), longest
    require_between(
        "shortest_memory",
        shortest_memory,
        1 / sampling_rate,
        longest_memory,
        "()",
    )
    return shortest_memory * sampling_rate, longest
