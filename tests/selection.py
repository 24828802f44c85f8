"""Which tests a run takes: the selection, the rest, the weekly ones, or all.

The selection is what the README's command runs: under PyTorch nearly all tests;
under JAX and TensorFlow, which compile, `EVERYWHERE` alone, and their own
folders. The rest has most other tests; the weekly ones take long and repeat
what others cover. `.ci/run` runs a seventh of both a day. The three parts
together run every test once, under every backend or under the one whose folder
of `one_backend` it is in. Plain pytest runs whatever it is given.

A test, a file (`pytestmark`) or a parameter that is not in the selection is
marked:

    @pytest.mark.rest                          under every backend
    @pytest.mark.rest("jax", "tensorflow")     under these
    @pytest.mark.weekly("jax", "tensorflow")   weekly under these

`tests/run.py` sets two variables: the part that a process takes, and its slice
of that part.
"""

import os
from pathlib import Path

import pytest

PART = "KERAS_LINREC_TEST_PART"
SLICE = "KERAS_LINREC_TEST_SLICE"
SELECTION, REST, WEEKLY, ALL = "selection", "rest", "weekly", "all"
# Removed, so that a pytest started by a test runs whatever it is given.
part = os.environ.pop(PART, ALL)
slice_index, slice_count = map(int, os.environ.pop(SLICE, "1/1").split("/"))

TESTS = Path(__file__).parent
ONE_BACKEND = TESTS / "one_backend"
PACKAGE = TESTS.parent / "keras_linrec"
# These backends compile programs, where PyTorch runs eagerly.
COMPILING = ("jax", "tensorflow")

# What the selection has under every backend: each unit against its definition,
# the scans by every kernel, and each capability of a layer that stands for all,
# but what is marked weekly.
EVERYWHERE = (
    "conformance/*",
    "layers/test_packing.py",
    "layers/test_units.py",
    "operations/test_kernels.py",
    "operations/test_nonlinear_scan.py",
    "operations/test_resolver.py",
    "operations/test_scan.py",
)


def standing_for_all(values, chosen, backends=COMPILING, part=REST):
    """Parameters of which only `chosen` are in the selection.

    Args:
        values: the parameters, each a value or a tuple of values.
        chosen: those that are in the selection under every backend.
        backends: where the others are left to the rest; none for all
            backends.
        part: what the others are left to. Defaults to the rest.
    """
    left = getattr(pytest.mark, part)(*backends)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in chosen else left,
        )
        for value in values
    ]


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "rest(*backends): not in the selection under these backends, or any",
    )
    config.addinivalue_line(
        "markers", "weekly(*backends): once a week under these, or any"
    )
    missing = [name for name in EVERYWHERE if not any(TESTS.glob(name))]
    if missing:
        raise pytest.UsageError(
            "tests/selection.py should name files of tests/. "
            f"Received: {', '.join(missing)}"
        )


def pytest_ignore_collect(collection_path):
    """True for a file from which this process takes no test."""
    if collection_path.suffix != ".py":
        return None
    taken = is_taken(collection_path) and in_slice(collection_path)
    return None if taken else True


def pytest_collection_modifyitems(config, items):
    if part == ALL:
        return
    taken = {True: [], False: []}
    for item in items:
        taken[part_of(item) == part].append(item)
    config.hook.pytest_deselected(items=taken[False])
    items[:] = taken[True]


def backend():
    return os.environ["KERAS_BACKEND"]


def is_taken(path):
    """Whether this part of the tests includes tests of a file."""
    return selected_here(path) if part == SELECTION else runs_here(path)


def only_backend(path):
    """The backend whose folder a file is in, or `None`."""
    if path.is_relative_to(ONE_BACKEND):
        return path.relative_to(ONE_BACKEND).parts[0]
    return None


def runs_here(path):
    """Whether a file has tests that apply to this backend."""
    if path.is_relative_to(PACKAGE):
        return True
    is_test = path.name.startswith("test_")
    return is_test and only_backend(path) in (None, backend())


def selected_here(path):
    """Whether the selection may have tests of a file under this backend."""
    if backend() in COMPILING and not only_backend(path):
        return any(path.match(name) for name in EVERYWHERE)
    return runs_here(path)


def part_of(item):
    """The part that has a test under this backend."""
    if is_marked(item, WEEKLY) or is_weekly(item.path):
        return WEEKLY
    if is_marked(item, REST) or not selected_here(item.path):
        return REST
    return SELECTION


def is_marked(item, name):
    """Whether a mark of this name applies under this backend."""
    marks = item.iter_markers(name)
    return any(not mark.args or backend() in mark.args for mark in marks)


def is_weekly(path):
    """Whether all tests of a file are weekly under this backend.

    Those are the docstrings' examples, whose layers other tests run under each.
    """
    return path.is_relative_to(PACKAGE) and backend() in COMPILING


def in_slice(path):
    """Whether a file is in this process's slice, `"1/3"` the first of three.

    Files are dealt out in turn; the package's examples count as one file.
    """
    files = [
        path for path in sorted(TESTS.rglob("test_*.py")) if is_taken(path)
    ]
    place = files.index(path) if path in files else len(files)
    return place % slice_count == slice_index - 1
