"""The recipes: runs that go on, models that are kept, the page of results."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import reproduce
from recipes import curves
from recipes import figures
from recipes import page
from recipes import record
from recipes import studies
from recipes import training
from recipes import verification
from recipes.data import TASKS
from recipes.recipe import what_trains
from recipes.studies import STUDIES
from recipes.studies import Study
from recipes.table import RECIPES
from recipes.tasks import FixedTask
from recipes.tasks import TextTask
from support import ROOT

pytestmark = pytest.mark.rest

RESULTS = ROOT / "docs" / "results"
TINY = replace(
    RECIPES["addition-orthogonal-400"],
    task_arguments={"steps": 12},
    layers=(
        ("OrthogonalRNN", {"units": 4, "dropout": 0.2, "seed": 1}),
        ("Dense", {"units": 1}),
    ),
    rounds=4,
    steps=3,
    test_every=2,
    batch_size=4,
    seeds=(0,),
    goal=1e-9,
)


# Training.


def run(tmp_path, name, recipe=TINY, **given):
    """Train in a folder of its own; the losses and the final weights."""
    folder = tmp_path / name
    options = reproduce.parse(
        [
            "speech-lssl",
            f"--folder={folder}",
            f"--output={folder}",
            *(f"--{key}={value}" for key, value in given.items()),
        ]
    )
    folder.mkdir(exist_ok=True)
    finished = training.train("tiny", recipe, 0, options)
    if not (folder / "tiny.json").exists():
        return finished, None, None
    (content,) = record.read(folder / "tiny.json")["runs"]
    model = keras.saving.load_model(folder / "tiny.keras")
    return finished, content, model.get_weights()


def test_a_run_that_was_stopped_or_killed_ends_with_the_same_numbers(tmp_path):
    finished, whole, weights = run(tmp_path, "whole")
    assert finished and whole["finished"]
    assert whole["history"]["round"] == [1, 2, 3, 4]
    assert whole["history"]["images"] == [12, 24, 36, 48]
    # Each call ends after a round.
    for _ in range(2):
        assert not run(tmp_path, "parts", minutes=1e-9)[0]
    # Killed after the third round was recorded, before its backup was made.
    (history,) = (tmp_path / "parts").glob("tiny/*/history.json")
    (backup,) = history.parent.glob("backup/*")
    assert backup.name == "epoch-2.weights.h5"
    rows = json.loads(history.read_text())
    history.write_text(json.dumps([*rows, {**rows[-1], "loss": 9.0}]))
    finished, parts, resumed = run(tmp_path, "parts")
    assert finished and parts["finished"]
    assert parts["history"]["images"] == whole["history"]["images"]
    assert parts["test"] == pytest.approx(whole["test"], rel=1e-4)
    for column in ("loss", "validation_loss"):
        (one, other) = (
            [value for value in content["history"][column] if value is not None]
            for content in (parts, whole)
        )
        assert one == pytest.approx(other, rel=1e-4)
    for one, other in zip(weights, resumed):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_finished_run_is_not_trained_again(tmp_path):
    _, first, weights = run(tmp_path, "again")
    finished, second, others = run(tmp_path, "again")
    assert finished and first["history"] == second["history"]
    for one, other in zip(weights, others):
        np.testing.assert_array_equal(one, other)


def test_progress_of_another_recipe_is_not_gone_on_with(tmp_path, capsys):
    run(tmp_path, "other")
    run(tmp_path, "other", replace(TINY, note="Other words.", seeds=(0, 1)))
    assert "finished before" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="another learning_rate, rounds"):
        run(tmp_path, "other", replace(TINY, learning_rate=1.0, rounds=2))


def test_a_run_ends_at_its_goal(tmp_path):
    # That of a test, which the second round is the first to have.
    recipe = replace(TINY, goal=100.0)
    finished, content, _ = run(tmp_path, "goal", recipe)
    assert finished
    assert content["history"]["round"] == [1, 2]
    assert figures.figure(recipe, content) == 6


def test_a_run_records_where_it_was_made_and_no_names(tmp_path):
    _, content, _ = run(tmp_path, "where")
    assert content["cores"] >= 1 and content["processor"]
    assert content["versions"]["keras"] == keras.__version__
    assert content["backend"] == keras.backend.backend()
    assert str(Path.home()) not in json.dumps(content)
    for column in ("seconds", "cpu_seconds"):
        times = content["history"][column]
        assert 0 < times[0] < times[-1]


def test_a_commit_is_dirty_unless_recipes_alone_have_changed(
    tmp_path, monkeypatch
):
    folder = tmp_path / "examples" / "recipes"
    folder.mkdir(parents=True)
    for name in ("pixels_table.py", "page.py"):
        (folder / name).write_text("")
    monkeypatch.setattr(record, "__file__", str(folder / "record.py"))
    assert record.commit() is None
    author = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    record.git("init", str(tmp_path))
    record.git("add", ".")
    record.git(*author, "commit", "-m", "The first.")
    (folder / "pixels_table.py").write_text("RECIPES = {}")
    assert re.fullmatch("[0-9a-f]{12}", record.commit())
    (folder / "page.py").write_text("ABOUT = {}")
    assert record.commit().endswith("-dirty")


def test_the_accelerator_of_each_round_is_recorded(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(record, "accelerator", lambda: "1 x GPU (cuda)")
        run(tmp_path, "moved", minutes=1e-9)
    monkeypatch.setattr(record, "accelerator", lambda: None)
    _, content, _ = run(tmp_path, "moved")
    accelerators = content["history"]["accelerator"]
    assert accelerators == ["1 x GPU (cuda)", None, None, None]


def test_a_kept_model_is_verified_and_another_is_not(tmp_path, capsys):
    run(tmp_path, "kept")
    folder = tmp_path / "kept"
    options = reproduce.parse(["speech-lssl", f"--output={folder}"])
    assert verification.verify("tiny", TINY, options)
    content = record.read(folder / "tiny.json")
    content["runs"][0]["test"]["loss"] += 0.1
    (folder / "tiny.json").write_text(json.dumps(content))
    assert not verification.verify("tiny", TINY, options)
    assert "the same figure" in capsys.readouterr().out


def pictures(path, count=40):
    """A file like Keras' mnist.npz, of noise with the label in it."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 4
    images = generator.integers(0, 99, (count, 4, 4), "uint8")
    images[:, 0, 0] = 60 * labels
    half = count // 2
    np.savez(
        path,
        x_train=images[:half],
        y_train=labels[:half],
        x_test=images[half:],
        y_test=labels[half:],
    )
    return path


IMAGES = replace(
    RECIPES["pixels-orthogonal"],
    layers=(
        ("OrthogonalRNN", {"units": 4}),
        ("Dense", {"units": 4, "activation": "softmax"}),
    ),
    rounds=4,
    batch_size=4,
    test_every=1,
    seeds=(0,),
)


def test_what_is_held_out_chooses_the_round_and_the_test_is_read_once(
    tmp_path, monkeypatch
):
    tested = []
    tests = FixedTask.tests
    monkeypatch.setattr(
        FixedTask, "tests", lambda task: tested.append(1) or tests(task)
    )
    # The second round is the best, of the two first with this accuracy.
    shares = iter((0.3, 0.7, 0.7, 0.1, 0.9))
    monkeypatch.setattr(
        training,
        "test",
        lambda *_: {"loss": 1.0, "accuracy": next(shares)},
    )
    weights = []
    publish = training.Progress._choose
    monkeypatch.setattr(
        training.Progress,
        "_choose",
        lambda self: weights.append(self.model.get_weights()) or publish(self),
    )
    data = pictures(tmp_path / "images.npz")
    finished, content, kept = run(tmp_path, "held", IMAGES, data=data)
    assert finished and len(tested) == 1
    assert content["test"] == {"round": 2, "loss": 1.0, "accuracy": 0.9}
    assert figures.figure(IMAGES, content) == 90
    assert len(weights) == 2
    for one, other in zip(weights[1], kept):
        np.testing.assert_array_equal(one, other)


def test_a_tenth_is_held_out_the_same_in_every_run(tmp_path):
    options = SimpleNamespace(data=pictures(tmp_path / "images.npz", 80))
    tasks = [TASKS["pixels"](options, seed, order="pixels") for seed in (0, 1)]
    everything = tasks[0].train[0]
    for task in tasks:
        task.hold_out()
    (one, _), (other, _) = (task.validation for task in tasks)
    assert len(one) == 4 and len(tasks[0].train[0]) == 36
    np.testing.assert_array_equal(one, other)
    both = np.concatenate([one, tasks[0].train[0]])
    assert sorted(both.tolist()) == sorted(everything.tolist())
    text = TextTask(np.arange(1000), 10)
    text.hold_out()
    assert text.train[-1] == 809 and text.validation[-1] == 899
    drawn = [
        next(iter(part()))[0]["sequences"]
        for part in (
            TASKS["addition"](options, 0, 8).tests,
            TASKS["addition"](options, 0, 8).validations,
        )
    ]
    assert not np.array_equal(*drawn)


def test_a_run_in_training_has_no_figure_of_the_test(tmp_path, capsys):
    run(tmp_path, "parts", minutes=1e-9)
    run(tmp_path, "parts", minutes=1e-9)
    folder = tmp_path / "parts"
    options = reproduce.parse(["speech-lssl", f"--output={folder}"])
    assert not verification.verify("tiny", TINY, options)
    assert "not tested yet" in capsys.readouterr().out


# Results.


def test_every_result_is_of_its_recipe_as_it_stands():
    for path in RESULTS.glob("*.json"):
        recipe = RECIPES.get(path.stem) or STUDIES[path.stem]
        assert record.read(path)["recipe"] == what_trains(recipe), path
        if path.stem in RECIPES:
            model = path.with_suffix(".keras")
            assert model.stat().st_size <= record.LARGEST_MODEL, model


def test_the_pages_of_results_are_current():
    command = "python examples/reproduce.py --page writes it"
    text = (ROOT / "docs" / "results.md").read_text()
    assert page.renewed(text, RESULTS) == text, command
    made = page.pages(RESULTS)
    assert {path.stem for path in RESULTS.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (RESULTS / f"{name}.md").read_text() == text, command


def test_every_section_is_on_one_page():
    known = {recipe.section for recipe in RECIPES.values()}
    known |= {study.section for study in STUDIES.values()}
    assert sorted(page.SECTIONS) == sorted(known)


def test_a_task_without_a_papers_figure_has_one_row_of_means(tmp_path):
    write_results(tmp_path, "sensors-lssl", [accurate(0.9), accurate(0.8)])
    write_results(tmp_path, "sensors-gru", [accurate(0.7)])
    assert (
        "| [Sensors: Japanese Vowels](results/sensors.md#sensors-japanese-"
        "vowels) | LSSL: 85.0%; GRU: 70.0% |"
    ) in page.overview(tmp_path)


def test_old_links_to_a_section_lead_to_its_place_in_the_list(tmp_path):
    write_results(tmp_path, "pixels-lssl", [accurate(0.5)])
    assert (
        "- [Pictures, pixel by pixel](results/pictures.md): <span "
        'id="mnist-pixel-by-pixel"></span>[MNIST, pixel by pixel]'
        "(results/pictures.md#mnist-pixel-by-pixel)\n"
    ) in page.overview(tmp_path)


def accurate(*shares, finished=True):
    """A run with these accuracies of its tests."""
    return {
        "seed": 0,
        "parameters": 1234,
        "finished": finished,
        "measurements": {"half rate": shares[0] / 2},
        "history": {
            "round": list(range(1, len(shares) + 1)),
            "images": [10 * (i + 1) for i in range(len(shares))],
            "cpu_seconds": [60.0 * (i + 1) for i in range(len(shares))],
            "test_accuracy": list(shares),
        },
    }


def write_results(folder, name, runs):
    (folder / f"{name}.json").write_text(json.dumps({"runs": runs}))


def whole(folder):
    """The overview and the pages below it, one after another."""
    return "\n".join([page.overview(folder), *page.pages(folder).values()])


def test_the_page_has_means_ranges_times_and_what_differs(tmp_path):
    # Of 180 and 120 seconds.
    runs = [accurate(0.5, 0.75, None), accurate(0.5, 0.7)]
    write_results(tmp_path, "pixels-lssl", runs)
    text = whole(tmp_path)
    assert "## MNIST, pixel by pixel\n" in text
    assert (
        "| [MNIST, pixel by pixel](results/pictures.md#mnist-pixel-by-pixel) "
        "| LSSL, small | 99.53% (Gu et al. 2021, "
        "figure 2) | 72.5% (70.0% to 75.0%) | the test | 2 | 2.5 "
        "| `pixels-lssl` |"
    ) in text
    assert (
        "| LSSL, small | 1,234 | 99.53% (Gu et al. 2021, figure 2) "
        "| 72.5% (70.0% to 75.0%) | the test | 2 | 2.5 | `pixels-lssl` |"
    ) in text
    assert "| LSSL, small | 25.0% (25.0% to 25.0%) |" in text
    assert RECIPES["pixels-lssl"].note in " ".join(text.split())


def test_beside_a_papers_figure_stands_what_differs_from_the_paper():
    for name, recipe in RECIPES.items():
        assert bool(recipe.published) == bool(recipe.note), name


def test_minutes_on_an_accelerator_are_told_apart(tmp_path):
    run = accurate(0.5, 0.6, 0.7)
    run["history"] |= {
        # A processor's minute a round; half of one on the clock.
        "seconds": [30.0, 60.0, 90.0],
        "accelerator": ["1 x NVIDIA H200 (cuda)"] * 2 + [None],
    }
    write_results(tmp_path, "pixels-lssl", [run])
    assert (
        "| 1.0 on NVIDIA H200 (2 rounds) and 1.0 (1 rounds) |"
    ) in page.overview(tmp_path)
    (result,) = figures.results(tmp_path)
    assert curves.places_of("accuracy", [result]) == curves.SEQUENCES
    del run["history"]["accelerator"]
    result.runs = [run]
    assert curves.places_of("accuracy", [result]) == curves.MINUTES
    assert curves.places_of("iterations", [result]) == curves.STEPS


def test_figures_of_other_kinds_are_in_their_units(tmp_path):
    run = accurate(0.5)
    run["measurements"] = {}
    text = {**run, "history": {**run["history"], "test_loss": [math.log(4)]}}
    write_results(tmp_path, "text-lstm", [text])
    norms = {"layer 1": [2.0, 3.0], "layer 2": [1.0, 4.0]}
    watched = {**run, "history": {**run["history"], **norms}}
    write_results(tmp_path, "norms-lru", [watched])
    runs = [
        {**run, "history": {**run["history"], "images": [2560, 5120], **given}}
        for given in (
            {"loss": [1.0, 0.1], "test_loss": [1.0, 0.1]},
            {"loss": [1.0, 0.5], "test_loss": [1.0, 0.5]},
        )
    ]
    write_results(tmp_path, "copying-300", runs)
    made = whole(tmp_path)
    for shown in (
        "| 2.000 bits |",
        "| 4.00 times |",
        "| 20 steps, not reached in 300 steps |",
    ):
        assert shown in made
    write_results(tmp_path, "copying-300", runs[1:] * 2)
    assert "| not reached in 300 steps |" in whole(tmp_path)


def test_a_run_that_diverged_has_not_reached_its_goal():
    history = {"images": [256], "loss": [math.nan], "test_loss": [math.nan]}
    recipe = RECIPES["copying-300"]
    assert figures.figure(recipe, {"history": history}) is None


def test_the_page_says_how_far_a_run_is(tmp_path):
    write_results(tmp_path, "pixels-lssl", [accurate(0.5, finished=False)])
    assert "50.0% in training, round 1 of 60" in whole(tmp_path)


def test_names_are_those_of_recipes_and_needed(capsys):
    for arguments in (["speech-gru"], []):
        with pytest.raises(SystemExit):
            reproduce.parse(arguments)
    message = capsys.readouterr().err
    assert "speech-gru" in message and "expected the NAME" in message


def test_a_backend_that_is_not_installed_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(
        reproduce.importlib.util, "find_spec", lambda name: None
    )
    folders = [f"--folder={tmp_path}", f"--output={tmp_path}"]
    with pytest.raises(SystemExit, match="--backend: torch is not installed"):
        reproduce.main(["speech-lssl", "--backend=torch", *folders])


def test_hardly_any_minutes_are_some():
    assert figures.in_digits(0.02) == "under 0.1"
    assert figures.in_digits(0.05) == "0.1"


def test_the_words_of_the_page_hold_for_its_figures():
    """What notes and introductions say of results, which no file holds."""

    def runs(name):
        return record.read(RESULTS / f"{name}.json")["runs"]

    def mean(name, measurement):
        return np.mean([r["measurements"][measurement] for r in runs(name)])

    (run,) = runs("pixels-lipschitz")
    assert run["history"]["accuracy"][-1] == 1.0
    (run,) = runs("permuted-orthogonal")
    assert 0.96 < run["history"]["accuracy"][-1] < 0.97
    robust = ("robust-lipschitz", "robust-ode", "robust-antisymmetric")
    for measurement in ("largest eigenvalue", "trace"):
        assert (
            max(robust, key=lambda name: mean(name, measurement)) == robust[0]
        )
    assert max(robust, key=lambda n: mean(n, "DeepFool l_inf")) == robust[2]
    (varied,) = runs("speech-lssl-varied")
    loss = varied["history"]["test_accuracy"][-1]
    loss -= varied["measurements"]["half rate"]
    assert 0 < loss < 0.03
    for measurement in ("PGD", "DeepFool l2"):
        assert (
            max(robust, key=lambda name: mean(name, measurement)) == robust[0]
        )


def test_the_list_has_every_recipe(tmp_path, capsys):
    write_results(tmp_path, "speech-lssl", [accurate(0.984)])
    reproduce.main(["--list", f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    for name in RECIPES:
        assert f"\n{name} " in printed
    assert "98.4%" in printed


def test_the_curves_of_a_section_are_drawn(tmp_path):
    picture = tmp_path / "raw-speech.png"
    write_results(tmp_path, "speech-lssl", [accurate(0.5, 0.9)])
    page.draw("Raw speech", tmp_path)
    assert not picture.exists()
    write_results(tmp_path, "speech-rotrnn", [accurate(0.4, 0.8, 0.9)])
    page.draw("Raw speech", tmp_path)
    assert picture.read_bytes()[:4] == b"\x89PNG"


# Studies.


ROWS = {"LSTM": [0.1, 0.2], "RotRNN": [1.0, None]}
STUDY = Study("Gradients", "an_example", "Norms.", "unit", "{:.1f}", seeds=(0,))


def of_study(seed, rows):
    return {"seed": seed, "columns": [1, 2], "rows": rows, "cpu_seconds": 90.0}


def test_a_study_writes_its_table_for_every_seed(tmp_path, monkeypatch):
    example = SimpleNamespace(study=lambda seed: ((1, 2), {"LSTM": [seed, 2]}))
    monkeypatch.setitem(sys.modules, "an_example", example)
    for seed in (1, 0, 1):
        studies.measure("tiny", STUDY, seed, tmp_path)
    runs = record.read(tmp_path / "tiny.json")["runs"]
    assert [run["rows"]["LSTM"] for run in runs] == [[0.0, 2.0], [1.0, 2.0]]
    assert runs[0]["backend"] == keras.backend.backend()


def test_the_page_has_the_medians_of_a_study(tmp_path):
    runs = [
        of_study(seed, {"LSTM": [v, v]}) for seed, v in enumerate((1, 5, 2))
    ]
    write_results(tmp_path, "gradients", runs)
    curves.draw_study(STUDIES["gradients"], runs, tmp_path)
    text = whole(tmp_path)
    assert "| unit of 64 | 1 | 2 |\n|---|---|---|\n| LSTM | 2 | 2 |" in text
    assert "(gradients-over-2-000-steps.png)" in text
    assert "`gradients`: 3 seeds, 1.5 minutes each." in text
    assert "gradients " in figures.listing(tmp_path)


def test_a_study_without_curves_leaves_empty_cells_and_no_picture(tmp_path):
    curves.draw_study(STUDY, [of_study(0, ROWS)], tmp_path)
    text = page.study_text("tiny", STUDY, [of_study(0, ROWS)], tmp_path)
    assert "| RotRNN | 1.0 |  |" in text
    assert not list(tmp_path.iterdir())


def test_a_study_has_no_model_to_verify(capsys):
    with pytest.raises(SystemExit):
        reproduce.parse(["--verify", "gradients"])
    assert "Received: gradients" in capsys.readouterr().err
