"""The examples of the linear systems, on tiny data."""

from importlib import import_module

import numpy as np
import pytest

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]


def test_copies_ask_for_the_first_symbols_after_the_mark():
    example = import_module("copy_memory")
    sequences, symbols = example.copies(6, 7, np.random.default_rng(0))
    assert sequences.shape == (6, 27, 10) and symbols.shape == (6, 10)
    assert (sequences.sum(axis=-1) == 1).all()
    tokens = sequences.argmax(axis=-1)
    assert (tokens[:, :10] == symbols).all() and (symbols < 8).all()
    silence = np.full(17, example.BLANK)
    silence[6] = example.MARK
    assert (tokens[:, 10:] == silence).all()


def test_a_linear_system_copies_what_an_lstm_does_not(tmp_path, capsys):
    example = import_module("copy_memory")
    figure = tmp_path / "copy_memory.png"
    sizes = ["--delay", "5", "--state-size", "160", "--lstm-units", "3"]
    sizes += ["--batch-size", "64", "--iterations", "40", "--test-size", "32"]
    sizes += ["--lstm-iterations", "2"]
    curves = example.main([*sizes, "--output", str(tmp_path)])
    assert curves["LinearDynamicalSystem"][-1][1] < example.GOAL
    assert curves["LSTM"][-1][1] > example.BASELINE / 2
    assert "| LSTM | " in capsys.readouterr().out
    assert figure.stat().st_size > 0


def test_without_iterations_there_is_no_lstm():
    sizes = ["--delay", "1", "--state-size", "20", "--batch-size", "2"]
    sizes += ["--iterations", "1", "--lstm-iterations", "0", "--test-size", "2"]
    curves = import_module("copy_memory").main(sizes)
    assert [*curves] == ["LinearDynamicalSystem"]


def test_an_untrained_linear_system_only_guesses():
    example = import_module("copy_memory")
    options = example.parse(["--delay", "3", "--test-size", "8"])
    model = example.build_model("LinearDynamicalSystem", options)
    entropy, _ = example.test(model, options)
    assert entropy == pytest.approx(example.BASELINE, rel=1e-5)


def test_the_goal_is_reached_where_the_curve_is_first_below_it():
    example = import_module("copy_memory")
    curve = [(10, 2.0), (20, 0.2), (30, 0.3), (40, 0.1)]
    assert example.goal_reached(curve) == 20
    assert example.goal_reached(curve[:1]) is None


def test_an_ldstack_adds(monkeypatch, tmp_path):
    example = import_module("addition_task")
    monkeypatch.setattr(example, "AVERAGED", 50)
    figure = tmp_path / "addition_task.png"
    sizes = ["--layer", "ldstack", "--steps", "10", "--iterations", "400"]
    curve = example.main(
        [*sizes, "--test-size", "8", "--output", str(tmp_path)]
    )
    assert curve[-1][1] < example.BASELINE / 2
    assert figure.stat().st_size > 0


def test_digits_are_read_by_the_stack_that_was_asked_for():
    example = import_module("stable_digits")
    settings = ["--depth", "3", "--slope", "0.5", "--eigenvalues", "unit"]
    options = example.parse(["--layer", "ldstack", *settings])
    (settings,) = example.runs(options)
    layer = example.build_layer(6, 64, **settings)
    assert (layer.depth, layer.slope, layer.eigenvalues) == (3, 0.5, "unit")
    assert example.describe(settings).startswith("ldstack, depth 3")


def test_errors_of_stacks_and_means_are_as_the_mathematics_has_it(
    monkeypatch, tmp_path
):
    example = import_module("nonlinear_stack")
    monkeypatch.setattr(example, "DEPTHS", (1, 7))
    monkeypatch.setattr(example, "SLOPES", (1.0, 0.5))
    monkeypatch.setattr(example, "PROJECTIONS", (1, 3))
    monkeypatch.setattr(example, "SHOWN", ((2, "red", 2),))
    figure = tmp_path / "nonlinear_stack.png"
    sizes = ["--units=4", "--steps=6", "--batch-size=2", "--inputs=3"]
    sizes += ["--long-steps", "9", "--draws", "2", "--output", str(tmp_path)]
    stacks, means = example.main(sizes)
    for first, exact in stacks.values():
        assert exact < 1e-4 < first
    assert means["orthogonal"][1] < 1e-5 < means["orthogonal"][0]
    assert means["independent"][1] > 1e-2
    assert figure.stat().st_size > 0


def test_a_mean_has_the_weights_of_its_system():
    example = import_module("nonlinear_stack")
    generator = np.random.default_rng(0)
    options = example.parse(["--units", "5", "--inputs", "2"])
    system, sequence = example.multi_input_system(options, generator)
    sequence = sequence[:, :7]
    mean = example.mean_of(system, 2, "orthogonal", sequence, generator)
    np.testing.assert_allclose(mean, example.run(system, sequence), atol=1e-5)
