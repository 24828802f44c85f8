"""Every test belongs to one part under each backend that it is for."""

from types import SimpleNamespace

import pytest
import selection

LAYERS, PAGES = "layers/test_lssl.py", "one_backend/torch/pages/test_docs.py"
EVERYWHERE = "layers/test_units.py"
BACKENDS = ("jax", "tensorflow", "torch")


def part_of(monkeypatch, backend, path, *marks):
    """The only part that has a test, or `None` if it does not run."""
    monkeypatch.setenv("KERAS_BACKEND", backend)
    path = (selection.TESTS / path).resolve()
    if not selection.runs_here(path):
        return None
    part = selection.part_of(
        SimpleNamespace(
            path=path,
            iter_markers=lambda name: (m for m in marks if m.name == name),
        )
    )
    # Its file is read where the part is run.
    monkeypatch.setattr(selection, "part", part)
    assert selection.is_taken(path)
    return part


@pytest.mark.parametrize(
    ("path", "marks", "parts"),
    [
        (LAYERS, [], "rest rest selection"),
        (EVERYWHERE, [], "selection selection selection"),
        (EVERYWHERE, [pytest.mark.rest("jax")], "rest selection selection"),
        (EVERYWHERE, [pytest.mark.rest], "rest rest rest"),
        (LAYERS, [pytest.mark.weekly("jax")], "weekly rest selection"),
        (
            LAYERS,
            [pytest.mark.rest, pytest.mark.weekly],
            "weekly weekly weekly",
        ),
        ("../keras_linrec/config.py", [], "weekly weekly selection"),
    ],
)
def test_marks_and_the_list_say_which(monkeypatch, path, marks, parts):
    marks = [getattr(mark, "mark", mark) for mark in marks]
    for backend, part in zip(BACKENDS, parts.split(), strict=True):
        assert str(part_of(monkeypatch, backend, path, *marks)) == part


@pytest.mark.parametrize("only", BACKENDS)
def test_a_folder_says_which_backend_alone(monkeypatch, only):
    folder = selection.ONE_BACKEND / only
    files = list(folder.rglob("test_*.py"))
    assert files
    for backend in BACKENDS:
        expected = "selection" if backend == only else None
        for path in files:
            assert part_of(monkeypatch, backend, path) == expected


def test_files_are_dealt_out_once(monkeypatch):
    monkeypatch.setattr(selection, "part", selection.ALL)
    monkeypatch.setattr(selection, "slice_count", 3)
    files = selection.TESTS.rglob("test_*.py")
    runs = [path for path in files if selection.runs_here(path)]
    taken = []
    for index in (1, 2, 3):
        monkeypatch.setattr(selection, "slice_index", index)
        taken += [path for path in runs if selection.in_slice(path)]
    assert sorted(taken) == sorted(runs)
