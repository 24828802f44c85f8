"""The examples of language models, on tiny data."""

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from importlib import import_module

import numpy as np
import pytest
from support import EXAMPLES

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

TINY = ["--layers", "1", "--hidden-dim", "8", "--batch-size", "4"]
WRITING = [*TINY, "--length", "16", "--iterations", "3", "--characters", "5"]


def test_a_text_is_learned_by_both_models(tmp_path, capsys):
    example = import_module("language_model")
    figure = tmp_path / "language_model.png"
    curves = example.main(
        [*WRITING, "--rounds", "2", "--output", str(tmp_path), "--prompt", "Th"]
    )
    assert [point["round"] for point in curves["rotrnn"]] == [1, 2]
    for curve in curves.values():
        assert curve[1]["bits"] < curve[0]["bits"] < 8.2
    assert figure.stat().st_size > 0
    printed = capsys.readouterr().out
    assert "    Th" in printed and "| lstm |" in printed


def test_a_folder_continues_its_run_and_refuses_another(tmp_path, capsys):
    example = import_module("language_model")
    command = [*WRITING, "--no-lstm", "--folder", str(tmp_path)]
    first = example.main([*command, "--rounds", "1"])["rotrnn"]
    (longer,) = example.main([*command, "--rounds", "2"]).values()
    assert longer[0] == first[0] and longer[1]["round"] == 2
    assert longer[1]["minutes"] > longer[0]["minutes"]
    assert example.main([*command, "--rounds", "2"]) == {"rotrnn": longer}
    assert "Finished before" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="a run with another dropout"):
        example.main([*command, "--rounds", "2", "--dropout", "0.5"])


@pytest.mark.parametrize(
    ("option", "least"),
    [("--minutes", "above"), ("--learning-rate", "above"), ("--dropout", "of")],
)
def test_an_option_without_effect_is_refused(option, least, capsys):
    example = import_module("language_model")
    for value in ("-1", "inf", "nan", *(["0"] if least == "above" else [])):
        with pytest.raises(SystemExit):
            example.parse([option, value])
        assert f"a number {least}" in capsys.readouterr().err
    assert example.parse(["--dropout", "0"]).dropout == 0


def test_every_byte_but_the_first_is_predicted_once_or_more():
    example = import_module("language_model")
    text = np.arange(50)
    inputs, targets = example.rows_of(text, 20)
    assert inputs["token_ids"].shape == (3, 20)
    assert (targets == inputs["token_ids"] + 1).all()
    assert set(targets.ravel().tolist()) == set(range(1, 50))


def test_an_lstm_has_no_more_parameters_and_one_unit_more_would():
    for name in ("language_model", "list_operations"):
        example = import_module(name)
        options = example.parse([])
        counts = [
            example.build_lstm(count, options).count_params()
            for count in (9_999, 10_000, 12_000)
        ]
        assert counts[0] <= 9_999 and counts[1] <= 10_000
        assert 8_000 < counts[1] < counts[2] <= 12_000


@pytest.mark.slow
def test_a_killed_training_ends_where_another_does(tmp_path):
    command = [sys.executable, EXAMPLES / "language_model.py", *WRITING]
    command += ["--rounds", "4", "--iterations", "400", "--no-lstm"]
    command += ["--characters", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def last_round(output):
        rounds = [line for line in output.splitlines() if "held out" in line]
        *_, last = [line for line in rounds if line.startswith("round   4")]
        return float(last.split("loss ")[1].split(",")[0])

    def run(folder):
        return subprocess.run(
            [*command, "--folder", folder],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    whole = last_round(run(tmp_path / "whole"))
    process = subprocess.Popen(
        [*command, "--folder", tmp_path / "killed"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line.startswith("round   2"):
            break
    # What was said of the round is written; the next has begun, and is long.
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    resumed = run(tmp_path / "killed")
    assert "round   1" not in resumed
    assert abs(last_round(resumed) - whole) < 1e-4


def test_an_expression_has_the_value_of_its_operations():
    example = import_module("list_operations")
    options = example.parse(["--min-length", "5", "--max-length", "60"])
    token_ids, values = example.make_set(50, 0, options)
    for row, value in zip(token_ids, values):
        tokens = [example.TOKENS[token] for token in row if token]
        assert 5 <= len(tokens) <= 60
        assert evaluated(tokens) == value
    again, _ = example.make_set(50, 0, options)
    assert (again == token_ids).all()


def test_lengths_that_no_expression_has_are_refused():
    example = import_module("list_operations")
    options = example.parse(["--min-length", "1", "--max-length", "3"])
    with pytest.raises(SystemExit, match="Received: lengths from 1 to 3"):
        example.make_set(50, 0, options)


def evaluated(tokens):
    """The value of an expression, by a stack of its lists."""
    operations = {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda values: int(np.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    stack = [[]]
    for token in tokens:
        if token in operations:
            stack.append([operations[token]])
        elif token == "]":
            operation, *values = stack.pop()
            stack[-1].append(operation(values))
        else:
            stack[-1].append(int(token))
    ((value,),) = stack
    return value


def test_expressions_are_learned_from_by_both_models(tmp_path):
    example = import_module("list_operations")
    sizes = [*TINY, "--rounds", "1", "--iterations", "1", "--train-size", "16"]
    sizes += ["--test-size", "8", "--max-length", "40"]
    curves = example.main([*sizes, "--output", str(tmp_path)])
    assert set(curves) == {"rotrnn", "lstm"}
    for ((minutes, accuracy),) in curves.values():
        assert minutes > 0 and 0 <= accuracy <= 1
    assert (tmp_path / "list_operations.png").stat().st_size > 0


def test_a_text_that_is_too_short_is_named():
    example = import_module("language_model")
    options = Namespace(length=100, data="short.txt")
    with pytest.raises(SystemExit, match=r"more than 100 bytes.* 50 bytes"):
        example.split(np.arange(50), options)


def test_the_delta_rule_of_qwen_is_a_matrix_scan(capsys):
    example = import_module("qwen_delta_rule")
    tiny = ["--steps", "70", "--heads", "2", "--head-size", "8"]
    found = example.main([*tiny, "--repeats", "1"])
    assert found["difference"] < 1e-5
    assert "by ops.matrix_scan" in capsys.readouterr().out


def test_a_delta_rule_continues_from_a_state_as_that_of_qwen():
    example = import_module("qwen_delta_rule")
    generator = np.random.default_rng(0)
    query, key, value = (
        generator.standard_normal((2, 9, 2, size)) for size in (4, 4, 5)
    )
    decay, strength = generator.uniform(0.1, 2, (2, 2, 9, 2))
    state = generator.standard_normal((2, 2, 4, 5))
    *arguments, state = (
        example.ops.convert_to_tensor(part, "float32")
        for part in (query, key, value, -decay, strength, state)
    )
    options = {"initial_state": state, "output_final_state": True}
    expected = example.qwen._chunk_gated_delta_rule(*arguments, **options)
    for one, other in zip(example.delta_rule(*arguments, **options), expected):
        one, other = map(example.ops.convert_to_numpy, (one, other))
        np.testing.assert_allclose(one, other, atol=1e-5)
