"""The examples of the stable units, on tiny data."""

from argparse import Namespace
from importlib import import_module

import keras
import numpy as np
import pytest

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

TINY = ["--train-size", "32", "--epochs", "1", "--units", "4"]


def test_the_sum_is_of_the_two_marked_numbers():
    example = import_module("addition_task")
    sequences, sums = example.additions(50, 9, np.random.default_rng(0))
    marks = sequences[..., 1]
    assert (marks[:, :4].sum(axis=1) == 1).all()
    assert (marks[:, 4:].sum(axis=1) == 1).all()
    for sequence, (total,) in zip(sequences, sums):
        first, second = sequence[sequence[:, 1] == 1, 0]
        assert total == pytest.approx(first + second)


def test_addition_stops_at_half_the_baseline(monkeypatch, tmp_path):
    example = import_module("addition_task")
    monkeypatch.setattr(example, "AVERAGED", 2)
    sizes = ["--steps", "6", "--units", "4", "--reflections", "2"]
    sizes += ["--iterations", "6", "--test-size", "8"]
    figure = tmp_path / "addition_task.png"
    curve = example.main([*sizes, "--output", str(tmp_path)])
    assert [iterations for iterations, _ in curve] == [2, 4, 6]
    assert figure.stat().st_size > 0
    monkeypatch.setattr(example, "BASELINE", 1e6)
    assert len(example.main(sizes)) == 1


def test_tasks_hold_every_pixel_of_an_image():
    example = import_module("digits")
    images = np.random.default_rng(0).random((3, 8, 8))
    for task, shape in {
        "pixels": (3, 64, 1),
        "permuted": (3, 64, 1),
        "eight-pixels": (3, 8, 8),
        "noise-padded": (3, 8, 8),
    }.items():
        sequences = example.as_task(images, task)
        assert sequences.shape == shape
        pixels = np.sort(sequences.reshape(3, -1))
        assert (pixels == np.sort(images.reshape(3, -1).astype("f4"))).all()


def test_images_that_leave_a_rest_are_refused():
    example = import_module("digits")
    with pytest.raises(SystemExit, match="multiple of 8"):
        example.as_task(np.zeros((2, 5, 5)), "eight-pixels")


def test_noise_follows_the_image_and_differs_each_time():
    padding = import_module("stable_digits").NoisePadding(50, seed=0)
    rows = np.ones((4, 8, 3), "float32")
    one, other = (keras.ops.convert_to_numpy(padding(rows)) for _ in range(2))
    assert one.shape == (4, 50, 3) and (one[:, :8] == rows).all()
    assert abs(one[:, 8:].std() - 1) < 0.1
    assert (one[:, 8:] != other[:, 8:]).all()
    with pytest.raises(ValueError, match="steps=7"):
        type(padding)(7).build(rows.shape)


def test_every_layer_and_task_trains(capsys, tmp_path):
    example = import_module("stable_digits")
    sizes = [*TINY, "--test-size", "16", "--reflections", "2"]
    table = example.main([*sizes, "--task", "eight-pixels"])
    assert [name.partition(",")[0] for name, _, _ in table] == [*example.LAYERS]
    assert "| orthogonal, reflections 2 |" in capsys.readouterr().out
    padded = ["--task", "noise-padded", "--steps", "12"]
    padded += ["--layer", "orthogonal", "--output", str(tmp_path)]
    table = example.main([*sizes, *padded])
    assert len(table) == 1
    assert (tmp_path / "stable_digits.png").stat().st_size > 0


def test_an_ablation_varies_one_number():
    example = import_module("stable_digits")
    options = example.parse(["--ablation", "alpha", "--task", "permuted"])
    settings = example.runs(options)
    assert [one["alpha"] for one in settings] == [*example.ABLATIONS["alpha"]]
    assert {one["beta"] for one in settings} == {0.8}


def test_networks_of_the_waveform_are_of_one_size():
    example = import_module("waveform")
    options = Namespace(samples=20, activation="tanh", learning_rate=0.1)
    for kind in example.KINDS:
        units = example.units_for(kind, 500)
        assert abs(example.parameters(kind, units) - 500) < 25
        model = example.build_model(kind, units, options)
        fixed = 0
        if kind == "OrthogonalRNN":
            fixed = (units - 1) * (units - 2) // 2
        assert model.count_params() - fixed == example.parameters(kind, units)


def test_pieces_of_the_waveform_are_of_variance_one():
    pieces = import_module("waveform").recording(3, 200)
    assert pieces.shape == (3, 200)
    np.testing.assert_allclose(pieces.var(axis=1), 1, rtol=1e-3)


def test_the_waveform_runs_to_its_table(tmp_path):
    figure = tmp_path / "waveform.png"
    sizes = ["--pieces", "1", "--samples", "20", "--iterations", "2"]
    table = import_module("waveform").main(
        [*sizes, "--parameters", "50", "--output", str(tmp_path)]
    )
    assert [kind for kind, *_ in table] == [
        "OrthogonalRNN",
        "LSTM",
        "SimpleRNN",
    ]
    assert all(0 < error < 5 for _, _, errors, _ in table for error in errors)
    assert figure.stat().st_size > 0


def test_robustness_runs_to_its_tables(tmp_path, monkeypatch, capsys):
    example = import_module("robustness")
    monkeypatch.setattr(example, "WHITE_NOISE", (0.0, 1.0))
    monkeypatch.setattr(example, "SALT_AND_PEPPER", (0.5,))
    figure = tmp_path / "robustness.png"
    sizes = [*TINY, "--test-size", "10", "--hessian-size", "10"]
    sizes += ["--products", "3", "--samples", "2"]
    rows = example.main([*sizes, "--output", str(tmp_path)])
    assert [*rows] == [*example.LAYERS]
    assert all(np.isfinite(numbers[:6]).all() for numbers in rows.values())
    printed = capsys.readouterr().out
    assert "condition number" in printed and "| salt and pepper, 0.5" in printed
    assert figure.stat().st_size > 0
