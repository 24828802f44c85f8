"""More than one device gives the losses of one, under each framework.

Each framework runs in a process of its own, with the devices set there.
"""

import numpy as np
import pytest
from support.needs_native import require
from support.workers import found_by

from keras_linrec.kernels import registry
from keras_linrec.kernels.native.table import operations

pytestmark = pytest.mark.rest


def run(framework, *arguments):
    """The results that a worker prints."""
    return found_by(f"device_worker_{framework}", *arguments)


@pytest.fixture(scope="module")
def jax():
    return run("jax")


def assert_same(losses, expected):
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    # The model learns.
    assert expected[-1] < 0.95 * expected[0]


def test_jax_trains_as_on_one_device(jax):
    """With the rows, the time and some kernels sharded at once."""
    assert_same(jax["losses"]["all"], jax["losses"]["one"])


def test_a_layout_map_shards_a_kernel(jax):
    assert jax["losses"]["rows of a kernel"] == 4


@pytest.fixture
def rows(jax):
    """What the worker found of sharded rows in native code."""
    require(registry.Availability(**jax["native"]))
    return jax["rows"]


def test_every_native_function_runs_where_rows_are_sharded(rows):
    assert rows["native"] == sorted(
        f"keras_linrec_{name}"
        for name, operation in operations().items()
        if operation.on_cpu
    )
    assert rows["error"] < 1e-4


def test_devices_with_a_sharded_batch_move_no_rows(rows):
    assert rows["moves"] == []


def test_sharded_rows_give_the_same_results_however_they_are_scanned(rows):
    assert_small(rows["ways"])


def test_a_compiled_function_is_compiled_again_within_the_scope(jax):
    assert jax["traces"] == 2


def test_scans_with_sharded_time_equal_the_scan_on_one_device(jax):
    assert_small(jax["scans"])


def test_the_power_of_a_part_of_time_keeps_its_digits():
    import jax

    from keras_linrec.kernels.jax.powers import power

    angle = np.linspace(0, 3, 50)
    number = np.cos(angle).astype("float32"), np.sin(angle).astype("float32")
    exact = (number[0].astype("float64") + 1j * number[1]) ** 5000
    slope = 5000 * (number[0].astype("float64") + 1j * number[1]) ** 4999
    tangents = tuple(map(np.ones_like, number))
    got, slopes = jax.jit(
        lambda z, dz: jax.jvp(lambda n: power(5000, n), (z,), (dz,))
    )(number, tangents)
    np.testing.assert_allclose(got, [exact.real, exact.imag], atol=2e-7)
    expected = slope * (1 + 1j)
    expected = np.array([expected.real, expected.imag])
    np.testing.assert_allclose(slopes, expected, atol=1e-6 * 5000)


@pytest.mark.slow
def test_sharded_rows_and_every_kind_of_scan_equal_one_device():
    found = run("jax", "more")
    assert_same(found["losses"]["data"], found["losses"]["one"])
    assert_small(found["scans"])


def assert_small(errors):
    assert {name: e for name, e in errors.items() if not e < 1e-5} == {}


def test_a_wrong_mesh_or_axis_is_named(jax):
    mesh, time, batch, same = jax["messages"]
    assert "`mesh`" in mesh and "Received: mesh=eight devices" in mesh
    assert "`time_axis`" in time and "Received: time_axis=steps" in time
    assert "`batch_axis`" in batch and "Received: batch_axis=rows" in batch
    assert "should differ from `time_axis`" in same


@pytest.mark.weekly
def test_tensorflow_trains_as_on_one_device():
    found = run("tensorflow")
    assert found["replicas"] == 2
    assert_same(found["data"], found["one"])


@pytest.mark.weekly
def test_pytorch_trains_as_in_one_process(tmp_path):
    found = run("torch", tmp_path)
    assert_same(found["data"], found["one"])
