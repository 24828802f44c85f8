"""The guides of `docs/guides/tasks/`, and the examples that they quote."""

import ast
import json
from importlib import import_module
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support import ROOT
from support import pages

import keras_linrec

pytestmark = pytest.mark.rest

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
    lstm = "torch.nn.LSTM"
    assert lstm in result["curves"] and len(result["curves"]) > 1
    assert f"| {lstm} | " in capsys.readouterr().out
    # Both are tuned alike.
    trials = [len(tried) for tried in result["trials"].values()]
    assert trials == [3, 3]
    picture = tmp_path / f"{guide}.png"
    picture.unlink()
    module.main(["--plot-only", "--output", str(tmp_path)])
    assert picture.stat().st_size > 0


@pytest.mark.parametrize(("best", "chosen"), [(min, 3e-3), (max, 1e-3)])
def test_every_rate_is_tried_once_and_the_best_is_kept(best, chosen):
    task_guides = import_module("task_guides")
    last = {1e-3: 0.5, 3e-3: 0.2, 1e-2: float("nan")}
    tried = []

    def fit(model, data, rate):
        assert data == "signals"
        tried.append(rate)
        return SimpleNamespace(history={"val_loss": [1.0, last[rate]]})

    def build():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    record = task_guides.Record("loss", scale=10.0)
    for seed in range(2):
        record.train("ours", seed, build, fit, ("signals",), "val_loss", best)
    assert tried == [1e-3, 3e-3, 1e-2, chosen]
    result = record.result()
    assert result["curves"] == {"ours": [[10.0, 10 * last[chosen]]] * 2}
    assert result["parameters"] == {"ours": 3}


def test_every_signal_is_in_a_batch_and_the_first_two_differ_in_length():
    example = import_module("classify_signals")
    signals, classes = example.signals(70, np.random.default_rng(0))
    batches = example.Batches(signals, classes.tolist(), batch_size=16)
    rows = np.concatenate(batches.batches)
    assert sorted(rows) == list(range(70))
    lengths = [padded.shape[1] for padded, _ in batches]
    assert lengths[0] == 500 and lengths[1] == 1000
    for rows, (padded, labels) in zip(batches.batches, batches):
        assert labels.tolist() == classes[rows].tolist()
        for row, values in zip(rows, padded):
            np.testing.assert_array_equal(
                values[: len(signals[row])], signals[row]
            )
    few = example.Batches(signals[:3], classes[:3])
    assert [padded.shape[0] for padded, _ in few] == [3]
    # Keras, too, takes them all.
    model = example.build_model()
    assert model.predict(batches, verbose=0).shape == (70, 4)


def test_a_broken_reading_is_an_alarm_and_leaves_the_rest():
    example = import_module("detect_anomalies")
    step = keras_linrec.export_step(example.build_model())
    streams = example.streams(2, 30, np.random.default_rng(0))
    expected = example.scores(step, streams)
    streams[0, [0, 10]] = np.nan
    found = example.scores(step, streams)
    assert np.flatnonzero(~np.isfinite(found[0])).tolist() == [0, 10]
    assert np.isposinf(found[0, [0, 10]]).all()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


def test_gaps_may_be_given_as_nan():
    example = import_module("fill_gaps")
    signals = np.ones((2, 60, 1), "float32")
    plain, missing = example.with_gaps(signals, np.random.default_rng(0))
    signals[missing.astype(bool)] = np.nan
    gapped, _ = example.with_gaps(signals, np.random.default_rng(0))
    np.testing.assert_array_equal(gapped, plain)
    assert gapped.dtype == "float32"


def test_pieces_of_text_have_so_many_bytes(tmp_path):
    example = import_module("write_text")
    (tmp_path / "one.py").write_text("я" * 700, "utf-8")
    pieces = example.pieces_of_text(tmp_path)
    assert len(pieces) == 5
    assert all(len(piece.encode()) == example.LENGTH for piece in pieces)


def test_sizes_below_one_and_missing_figures_are_named(tmp_path, capsys):
    example = import_module("forecast")
    with pytest.raises(SystemExit):
        example.main(["--epochs", "0"])
    assert "--epochs: expected a whole number from 1" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="forecast.json: expected figures"):
        example.main(["--plot-only", "--output", str(tmp_path)])


@pytest.mark.parametrize("guide", EXAMPLES)
def test_a_guide_shows_the_picture_of_committed_numbers(guide):
    page = (ROOT / "docs" / "guides" / "tasks" / f"{guide}.md").read_text()
    assert f"../../images/tasks/{guide}.png" in page
    assert (PICTURES / f"{guide}.png").exists()
    curves = json.loads((PICTURES / f"{guide}.json").read_text())["curves"]
    assert all(len(runs) >= 2 for runs in curves.values())
