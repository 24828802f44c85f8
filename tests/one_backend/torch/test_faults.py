"""A little of what `tests/faults/run.py` does for an hour."""

import sys
import warnings

import pytest
from faults import builds
from faults import disks
from faults import fuzz_files
from faults import kills
from faults import processes
from faults import run
from support.needs_native import require_native

pytestmark = [
    pytest.mark.rest,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"),
        reason="limits, locks and forks as Linux has them",
    ),
    # Of forks beside threads; and HDF5 says that a disk is full thrice over.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


def survives(counts):
    survived, tries = counts
    return tries > 0 and survived == tries


def survives_if_root(counts):
    survived, tries = counts
    if not tries:
        pytest.skip("only root can mount a small disk")
    return survived == tries


def test_a_killed_save_leaves_a_whole_file():
    assert survives(kills.saves(8, seed=1))


def test_a_killed_training_resumes_with_the_same_bits():
    assert survives(kills.trainings(8, seed=1))


def test_a_limit_on_files_leaves_the_old_one():
    assert survives(disks.limited_files(6))


def test_a_full_disk_leaves_the_old_file():
    assert survives_if_root(disks.full_disks(3))


def test_a_read_only_disk_leaves_the_old_file():
    assert survives_if_root(disks.read_only_disks())


def test_a_killed_compiler_is_tried_again():
    assert survives(builds.killed_compilers(3, seed=1))


def test_what_a_killed_build_left_is_built():
    assert survives(builds.killed_builders(4, seed=1))


def test_a_full_cache_is_built_once_there_is_room():
    assert survives_if_root(builds.full_disks(2))


def test_a_crowd_with_an_empty_cache_builds_once():
    assert survives(builds.crowds(30))


def test_clocks_do_not_matter_to_the_cache():
    assert survives(builds.clocks(seed=1))


def test_forks_before_and_after_first_use_and_beside_threads_agree():
    require_native()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert survives(processes.forks(2))


@pytest.mark.slow
def test_interpreters_end_while_native_code_runs():
    require_native()
    assert survives(processes.ends(4))


@pytest.mark.slow
def test_little_memory_is_an_error_and_no_more():
    require_native()
    assert survives(run.memory(30))


def test_files_from_anywhere_load_or_are_refused_by_name():
    totals = fuzz_files.fuzz(60, seed=1)
    assert sum(totals.values()) == 60
    assert totals.keys() <= {"loaded", "refused"}
