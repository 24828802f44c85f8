"""Starting values given in hertz and seconds."""

import numpy as np
import pytest
from units import array

from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import RotRNN

# Steps per second, and memories of 5 to 200 steps.
RATE, SHORTEST, LONGEST = 50.0, 0.1, 4.0


def eigenvalues(layer):
    layer.build((None, None, 1))
    real, imag = (array(part) for part in layer.diagonal_system().decay)
    return real + 1j * imag


@pytest.mark.parametrize("unit", [LRU, RotRNN])
def test_states_start_within_the_memories_and_frequencies(unit):
    layer = unit.for_signals(
        4,
        sampling_rate=RATE,
        shortest_memory=SHORTEST,
        longest_memory=LONGEST,
        highest_frequency=2.5,
        state_size=400,
    )
    spectrum = eigenvalues(layer)
    memories = 1 / (1 - np.abs(spectrum)) / RATE
    frequencies = np.abs(np.angle(spectrum)) * RATE / (2 * np.pi)
    assert SHORTEST * 0.999 < memories.min() < memories.max() < LONGEST * 1.001
    assert 2.4 < frequencies.max() < 2.501


def test_features_of_lssl_start_within_the_memories():
    layer = LSSL.for_signals(
        4, sampling_rate=RATE, shortest_memory=SHORTEST, longest_memory=LONGEST
    )
    layer.build((None, None, 500))
    memories = np.exp(-array(layer.log_timescale)) / RATE
    assert SHORTEST * 0.999 < memories.min() < 1.1 * SHORTEST
    assert 0.9 * LONGEST < memories.max() < LONGEST * 1.001


@pytest.mark.parametrize("unit", [LRU, LSSL, RotRNN])
def test_the_shortest_memory_is_a_hundredth_or_two_steps(unit):
    def config(longest, shortest=None):
        return unit.for_signals(
            4,
            sampling_rate=RATE,
            longest_memory=longest,
            shortest_memory=shortest,
            name="unit",
        ).get_config()

    assert config(60.0) == config(60.0, 0.6)
    assert config(1.0) == config(1.0, 2 / RATE)


@pytest.mark.parametrize(
    "unit, arguments, message",
    [
        (LSSL, {"sampling_rate": 0}, "`sampling_rate` .* sampling_rate=0"),
        (RotRNN, {"longest_memory": 0.02}, "`longest_memory` .*=0.02"),
        (LRU, {"shortest_memory": 0.01}, "`shortest_memory` .*=0.01"),
        (LSSL, {"shortest_memory": 5.0}, "`shortest_memory` .*=5.0"),
        (LRU, {"highest_frequency": 26.0}, "`highest_frequency` .*=26.0"),
    ],
)
def test_what_a_signal_cannot_have_is_refused(unit, arguments, message):
    given = {"sampling_rate": RATE, "longest_memory": LONGEST, **arguments}
    with pytest.raises(ValueError, match=message):
        unit.for_signals(4, **given)
