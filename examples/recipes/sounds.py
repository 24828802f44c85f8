"""Sounds (time, 1) at other rates."""

import numpy as np

TAPS = 65
# Down to a quarter of the frequencies.
LOWEST = 4.0


def low_passed(sound, factor):
    """The sound without frequencies above a `factor`-th of the highest."""
    places = np.arange(TAPS) - TAPS // 2
    low_pass = np.sinc(places / factor) * np.hamming(TAPS)
    low_pass = (low_pass / low_pass.sum()).astype("float32")
    # NumPy's "same" is longer than a sound that is shorter than the filter.
    filtered = np.convolve(sound[:, 0], low_pass)[TAPS // 2 :]
    return filtered[: len(sound), None]


def interpolated(sound, factor):
    """The sound with `factor` times as many steps, by linear interpolation."""
    steps = np.arange(len(sound))
    places = np.arange(round(factor * len(sound))) / factor
    return np.interp(places, steps, sound[:, 0]).astype("float32")[:, None]


def oversampled(sound, factor):
    """The sound with `factor` times as many steps, and no new frequencies."""
    if factor == 1:
        return sound
    steps = np.zeros((factor * len(sound), 1), "float32")
    steps[::factor] = factor * sound
    return low_passed(steps, factor)


def varied(sound, generator):
    """Every other sound, at random, without the frequencies above some."""
    if generator.random() < 0.5:
        return sound
    return low_passed(sound, LOWEST ** generator.random())
