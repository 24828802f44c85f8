"""`config.keep_freed_memory`: memory that is freed stays in the process."""

import subprocess
import sys

import pytest

from keras_linrec import config

# Page faults of writing 256 MB that were allocated, freed and allocated again:
# before the setting, and after it in a new thread.
COUNT_FAULTS = """
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from keras_linrec import config


def faults():
    np.ones(32 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(32 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(faults())
config.keep_freed_memory()
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(faults).result())
"""


def has_glibc():
    return config._obstacle_to_mallopt() is None


@pytest.mark.skipif(not has_glibc(), reason="the allocator is not glibc's")
@pytest.mark.rest
def test_memory_that_was_freed_is_written_again_without_page_faults():
    run = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS],
        check=True,
        capture_output=True,
        text=True,
    )
    before, after = map(int, run.stdout.split())
    # With transparent large pages, a fault brings 2 MB.
    assert before >= 100
    assert after < before / 10


def test_other_systems_say_that_nothing_changes(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.warns(UserWarning, match="as before: darwin has no `mallopt`"):
        assert not config.keep_freed_memory()


@pytest.mark.parametrize("limit", [-1, 2**31, "all"])
def test_a_limit_that_the_c_library_does_not_take_is_refused(limit):
    with pytest.raises(ValueError, match="`limit` should be a number in"):
        config.keep_freed_memory(limit)
