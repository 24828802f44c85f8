"""The guides of `docs/guides/tasks/`, and the examples that they quote."""

import ast
import json
from importlib import import_module
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides" / "tasks").glob("*.md"))
PICTURES = ROOT / "docs" / "images" / "tasks"
# The example of each guide, at a tiny size.
EXAMPLES = {
    "classify_signals": ("classify_signals", "--signals 32 --new 32"),
    "detect_anomalies": (
        "detect_anomalies",
        "--streams 16 --new 4 --steps 310",
    ),
    "fill_gaps": ("fill_gaps", "--signals 32 --new 8 --steps 60"),
    "forecast": ("forecast", "--series 32 --new 8"),
    "generate_signals": (
        "generate_signals",
        "--signals 16 --new 8 --steps 60",
    ),
    "regress_sensors": (
        "regress_sensors",
        "--batteries 16 --new 4 --minutes 40",
    ),
    "text": ("write_text", "--pieces 32"),
}
# For data of the reader's own, which the examples do not have.
READERS_OF_DATA = {"Crops", "Files", "NewGaps", "Pieces", "Windows"}


def test_every_guide_has_an_example():
    assert [guide.stem for guide in GUIDES] == sorted(EXAMPLES)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_quotes_its_example(guide):
    example, _ = EXAMPLES[guide.stem]
    source = (ROOT / "examples" / f"{example}.py").read_text()
    there = definitions(source)
    quoted = {}
    for language, code in pages.blocks(guide):
        if language == pages.RUN:
            quoted.update(definitions(code))
    assert {"build_model", "train"} <= set(quoted)
    assert set(quoted) - set(there) <= READERS_OF_DATA
    shared = {name: there[name] for name in quoted if name in there}
    assert {name: quoted[name] for name in shared} == shared


def definitions(code):
    """The text of each function and class, by name."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {
        node.name: ast.get_source_segment(code, node)
        for node in ast.parse(code).body
        if isinstance(node, kinds)
    }


@pytest.mark.parametrize("guide", EXAMPLES)
def test_an_example_compares_its_model_with_a_baseline(
    guide, tmp_path, capsys, monkeypatch
):
    example, sizes = EXAMPLES[guide]
    module = import_module(example)
    if guide == "forecast":
        monkeypatch.setattr(module, "PAST", 170)
    if guide == "text":
        monkeypatch.setattr(module, "LENGTH", 32)
    arguments = f"--epochs 1 --seeds 1 --output {tmp_path}".split()
    result = module.main([*sizes.split(), *arguments])
    assert "LSTM" in result["curves"] and len(result["curves"]) == 2
    assert "| LSTM | " in capsys.readouterr().out
    picture = tmp_path / f"{guide}.png"
    picture.unlink()
    module.main(["--plot-only", "--output", str(tmp_path)])
    assert picture.stat().st_size > 0


@pytest.mark.parametrize("guide", EXAMPLES)
def test_a_guide_shows_the_picture_of_committed_numbers(guide):
    page = (ROOT / "docs" / "guides" / "tasks" / f"{guide}.md").read_text()
    assert f"../../images/tasks/{guide}.png" in page
    assert (PICTURES / f"{guide}.png").exists()
    curves = json.loads((PICTURES / f"{guide}.json").read_text())["curves"]
    assert all(len(runs) >= 2 for runs in curves.values())
