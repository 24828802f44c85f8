"""Starting values given in hertz and seconds."""

import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import S4D
from keras_linrec.layers import S5
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor

# Steps per second, and memories of 5 to 200 steps.
RATE, SHORTEST, LONGEST = 50.0, 0.1, 4.0


def memories_of(layer, rate):
    """In seconds."""
    if isinstance(layer, LSSL):
        layer.build((None, None, 200))
        return np.exp(-array(layer.log_timescale)) / rate
    # In float64: decays near 1 would be rounded away.
    layer.build((None, None, 1))
    log = layer.nu_log if isinstance(layer, LRU) else layer.gamma_log
    return 1 / -np.expm1(-np.exp(array(log).astype(float))) / rate


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


@pytest.mark.parametrize("unit", [LSSL, S4D, S5])
def test_timescales_start_within_the_memories(unit):
    layer = unit.for_signals(
        4,
        sampling_rate=RATE,
        shortest_memory=SHORTEST,
        longest_memory=LONGEST,
        **({"state_size": 500} if unit is S5 else {}),
    )
    layer.build((None, None, 500))
    memories = np.exp(-array(layer.log_timescale)) / RATE
    assert SHORTEST * 0.999 < memories.min() < 1.1 * SHORTEST
    assert 0.9 * LONGEST < memories.max() < LONGEST * 1.001


@pytest.mark.parametrize("unit", [LRU, LSSL, RotRNN])
def test_the_shortest_memory_is_a_period_of_the_highest_frequency(unit):
    def config(longest, **given):
        return unit.for_signals(
            4,
            sampling_rate=RATE,
            longest_memory=longest,
            name="unit",
            **given,
        ).get_config()

    assert config(60.0) == config(60.0, shortest_memory=2 / RATE)
    if unit is LSSL:
        slow = config(60.0, highest_frequency=4.0)
        assert slow == config(60.0, shortest_memory=1 / 4)
        # At most a hundredth of the longest.
        slow = config(60.0, highest_frequency=0.5)
        assert slow == config(60.0, shortest_memory=0.6)


@pytest.mark.parametrize("unit", [LRU, LSSL, RotRNN])
def test_memories_of_speech_are_spread_over_all_decades(unit):
    sizes = {} if unit is LSSL else {"state_size": 400}
    layer = unit.for_signals(4, sampling_rate=16000, longest_memory=30, **sizes)
    if unit is RotRNN:
        layer = unit(**{**layer.get_config(), "num_heads": 200})
    memories = memories_of(layer, 16000)
    assert memories.min() < 1e-3 and memories.max() > 10
    shares = [
        (memories < end).mean() - (memories < end / 10).mean()
        for end in (1e-2, 1e-1, 1, 10)
    ]
    # A fifth each, of five decades and a little.
    assert min(shares) > 0.1 and max(shares) < 0.3


@pytest.mark.parametrize("unit", ["lru", "lssl", "rotrnn"])
@pytest.mark.parametrize("given", [{}, {"shortest_memory": 0.001}])
def test_every_block_starts_for_its_own_rate(unit, given):
    sizes = {} if unit == "lssl" else {"state_size": 200}
    if unit == "rotrnn":
        sizes["num_heads"] = 100
    model = SequenceClassifier.for_signals(
        3,
        sampling_rate=16000,
        longest_memory=2,
        highest_frequency=4000,
        unit=unit,
        unit_arguments=sizes,
        num_layers=3,
        units=200 if unit == "lssl" else 8,
        pool_size=(4, 16),
        **given,
    )
    # A step of the last block is 4 ms.
    for block, rate in zip(model.blocks, (16000, 4000, 250)):
        memories = memories_of(block.unit, rate)
        shortest = max(1 / 4000, 2 / rate, given.get("shortest_memory", 0))
        assert 0.99 * shortest < memories.min() < 2 * shortest
        assert 1 < memories.max() < 2.01
        if unit != "lssl":
            highest = block.unit.theta_max * rate / (2 * np.pi)
            np.testing.assert_allclose(highest, min(4000, rate / 2))
    again = keras.models.clone_model(model)
    assert again.get_config() == model.get_config()
    for one, other in zip(again.blocks, model.blocks):
        assert one.unit.get_config() == other.unit.get_config()


def test_a_regressor_starts_in_seconds_too():
    model = SequenceRegressor.for_signals(
        1, sampling_rate=50, longest_memory=10, num_layers=2, units=4
    )
    assert [1 / block.unit.dt_min for block in model.blocks] == [500.0, 500.0]
    # Blocks that are alike have one configuration, as they always had.
    assert isinstance(model.get_config()["unit"], dict)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"unit": "ldstack"}, "`unit` .* unit=ldstack"),
        ({"longest_memory": 0.3}, "`longest_memory` .*=0.3"),
        ({"pool_size": 0}, "`pool_size` .*=0"),
    ],
)
def test_what_a_model_for_signals_cannot_have_is_refused(arguments, message):
    given = {"sampling_rate": 50, "longest_memory": 10, "pool_size": 4}
    with pytest.raises(ValueError, match=message):
        SequenceClassifier.for_signals(
            3, num_layers=3, units=4, **{**given, **arguments}
        )


def test_a_list_of_units_has_one_for_each_block():
    units = [LRU(4), RotRNN(4, state_size=4)]
    model = SequenceClassifier(3, num_layers=2, units=4, unit=units)
    again = keras.models.clone_model(model)
    kinds = [type(block.unit) for block in again.blocks]
    assert kinds == [LRU, RotRNN]
    with pytest.raises(ValueError, match="Received: 2 in `unit`, num_layers=3"):
        SequenceClassifier(3, num_layers=3, units=4, unit=units)


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
