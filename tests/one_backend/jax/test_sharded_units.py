"""Units on four devices: as XLA shares a program, and by `jax.shard_map`.

There each result of a device may differ from another's, and JAX checks where.
"""

from functools import cache

import pytest
from selection import standing_for_all
from support.needs_native import require
from support.units import UNITS
from support.workers import found_by

from keras_linrec.kernels import registry

pytestmark = pytest.mark.rest

# A linear and a nonlinear recurrence.
CHOSEN = ("orthogonal_rnn", "rotrnn")
OTHERS = tuple(name for name in UNITS if name not in CHOSEN)
PLAIN = "shard_map, portable"


@cache
def found(names):
    """What a process with four devices finds of these units."""
    return found_by("sharded_units_worker", *names, timeout=900)


def ways_of(name):
    return found(CHOSEN if name in CHOSEN else OTHERS)["units"][name]


def require_native_of_workers():
    require(registry.Availability(**found(CHOSEN)["native"]))


each_unit = pytest.mark.parametrize(
    "name", standing_for_all(UNITS, CHOSEN, part="weekly")
)


@each_unit
def test_devices_together_equal_one(name):
    errors = {way: found["error"] for way, found in ways_of(name).items()}
    # Some thirty roundings: sums over devices have another order.
    assert {way: e for way, e in errors.items() if not e < 3e-6} == {}


@each_unit
def test_native_code_runs_on_each_device(name):
    require_native_of_workers()
    native = {way: found["native"] for way, found in ways_of(name).items()}
    assert native.pop(PLAIN) == []
    assert all(native.values()), native
    # The same functions, however devices share the rows.
    assert len(set(map(tuple, native.values()))) == 1


@each_unit
def test_no_device_reads_the_rows_of_another(name):
    require_native_of_workers()
    ways = ways_of(name)
    assert ways["batch"]["moves"] == 0
    assert ways["batch and weights"]["gathers of the batch"] == []
