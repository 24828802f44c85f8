"""A short soak, and how a soak finds and keeps its failures."""

import queue

import numpy as np
import pytest
from support.programs import BACKEND

from soak import run
from soak.counts import Counts
from soak.tolerances import Bounded
from soak.tolerances import bounded
from soak.tolerances import error_share

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]


def test_a_short_soak_has_no_failure(tmp_path):
    path = tmp_path / "counts.json"
    counts = run.soak(5, BACKEND, seed=3, path=path, cases=2)
    assert counts.failures == []
    assert sum(counts.cases.values()) + counts.out_of_range == 2
    assert counts.checks["definition"] == counts.cases["layer"]
    assert all(share <= 1 for share in counts.largest_shares.values())
    assert Counts.read(path, BACKEND, 0) == counts


def test_counts_belong_to_one_backend(tmp_path):
    path = tmp_path / "counts.json"
    Counts("jax").write(path)
    with pytest.raises(ValueError, match="Received: .*of jax"):
        Counts.read(path, "torch", 0)


def test_a_failure_is_kept_with_the_command_that_repeats_it(
    monkeypatch, capsys, tmp_path
):
    found = {"case": 7, "kind": "layer", "shares": {}, "error": "too far off"}
    begun = []

    def results(first, backend):
        begun.append(first)
        yield found

    monkeypatch.setattr(run, "results", results)
    arguments = ["--minutes", "0", "--backend", "jax"]
    path = str(tmp_path / "counts.json")
    assert run.main([*arguments, "--counts", path]) == 1
    command = "python tests/soak/run.py --case 7 --backend jax"
    assert command in capsys.readouterr().out
    (failure,) = Counts.read(path, "jax", 0).failures
    assert failure["command"] == command
    assert failure["error"] == "too far off"
    # The same file goes on with the next case.
    run.main([*arguments, "--counts", path])
    assert begun == [0, 8]


@pytest.mark.parametrize(
    ("end", "message"),
    [(None, "process ended with -11"), (queue.Empty, "hangs")],
    ids=["crash", "hang"],
)
def test_a_crash_or_a_hang_is_a_failure_of_the_case_that_ran(end, message):
    class Worker:
        def __init__(self):
            passed = {"kind": "layer", "shares": {}}
            self.lines = [{"begins": 4}, {"case": 4, **passed}, {"begins": 5}]

        def next_line(self, timeout):
            if self.lines:
                return self.lines.pop(0)
            if end is not None:
                raise end
            return None

        def stop(self):
            return -11

    passed, failed = run.results_of(Worker(), 4)
    assert passed["case"] == 4 and "error" not in passed
    assert failed["case"] == 5 and message in failed["error"]


def test_a_bound_grows_with_the_condition_of_the_result():
    generator = np.random.default_rng(0)
    ones = np.ones(100)
    (well,) = bounded(lambda a: [a[0] + 1], [ones], generator, "float32")
    (ill,) = bounded(lambda a: [a[0] ** 50], [ones], generator, "float32")
    assert 1e-7 < well.bound < 1e-4
    assert 20 < ill.bound / well.bound < 80


def test_an_error_counts_as_a_share_of_its_bound():
    expected = Bounded(np.zeros(3), 0.5)
    assert error_share(np.array([0, 0.25, -0.1]), expected) == 0.5
    for wrong in ([0, np.nan, 0], [0, np.inf, 0], [0, 0]):
        assert error_share(np.array(wrong), expected) == np.inf
