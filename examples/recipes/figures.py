"""What runs came to, in numbers and in words."""

import math
import re
from collections import Counter
from pathlib import Path
from statistics import fmean

from recipes import record
from recipes.history import accelerators
from recipes.history import minutes_of
from recipes.history import present
from recipes.history import scores
from recipes.history import watched
from recipes.recipe import PAPERS
from recipes.studies import STUDIES
from recipes.table import RECIPES


class Result:
    """What the runs of a recipe came to.

    Attributes:
        name, recipe: the recipe, as the table has it.
        runs: list, the runs in its file, by seed.
    """

    def __init__(self, name, recipe, runs):
        self.name = name
        self.recipe = recipe
        self.runs = runs

    @property
    def finished(self):
        return [run for run in self.runs if run["finished"]]

    def figures(self):
        """The figure of each finished run."""
        return [figure(self.recipe, run) for run in self.finished]

    def minutes(self):
        """The mean minutes of a finished run, by what they were spent on."""
        runs = [minutes_of(run["history"])[-1] for run in self.finished]
        devices = dict.fromkeys(device for spent in runs for device in spent)
        return {d: fmean(spent.get(d, 0.0) for spent in runs) for d in devices}

    def rounds(self):
        """The rounds of the first finished run, by what ran them."""
        history = self.finished[0]["history"]
        return Counter(accelerators(history))


def is_share(recipe):
    """Whether the figure is a share in percent, of which more is better."""
    return recipe.figure == "accuracy"


def is_held_out(run):
    """Whether data that were held out chose, and not the test."""
    return "validation_loss" in run["history"]


def is_tested(run):
    """Whether there is a figure of the test."""
    return "test" in run or not is_held_out(run)


def tested(run, name):
    """The loss or the accuracy of the test.

    Of a run in training, that on what is held out.
    """
    if "test" in run:
        return run["test"][name]
    return last(scores(run["history"], name))


def figure(recipe, run):
    """The figure that a recipe reports, or `None` where it was not reached."""
    history = run["history"]
    if recipe.figure == "accuracy":
        return 100 * tested(run, "accuracy")
    if recipe.figure == "bits":
        return tested(run, "loss") / math.log(2)
    if recipe.figure == "growth":
        return max(map(growth, watched(history)))
    if not last(scores(history, "loss")) < recipe.goal:
        return None
    return history["images"][-1] // recipe.batch_size


def last(values):
    """The last value of a column that is there."""
    return present(values)[-1]


def growth(values):
    return max(present(values)) / min(present(values))


# How a figure is shown, and the word after it.
FORMATS = {
    "accuracy": ("{:.1f}%", ""),
    "iterations": ("{:,}", " steps"),
    "bits": ("{:.3f}", " bits"),
    "growth": ("{:.2f}", " times"),
}


def shown(recipe, value, with_unit=True):
    form, unit = FORMATS[recipe.figure]
    if value is None:
        return f"not reached in {recipe.rounds * recipe.steps:,}{unit}"
    return form.format(value) + (unit if with_unit else "")


def results(output):
    """The results of the recipes that have a file, in the table's order."""
    for name, recipe in RECIPES.items():
        path = Path(output) / f"{name}.json"
        if path.exists():
            yield Result(name, recipe, record.read(path)["runs"])


def studies(output):
    """The studies that have a file, and their runs, in the table's order."""
    for name, study in STUDIES.items():
        path = Path(output) / f"{name}.json"
        if path.exists():
            yield name, study, record.read(path)["runs"]


def summary(result, with_range=True):
    """The figure of all seeds in words."""
    recipe, figures = result.recipe, result.figures()
    if not figures:
        run = result.runs[0]
        done = run["history"]["round"][-1]
        so_far = f"in training, round {done} of {recipe.rounds}"
        if recipe.figure == "iterations":
            return so_far
        return f"{shown(recipe, figure(recipe, run))} {so_far}"
    if set(figures) == {None}:
        return shown(recipe, None)
    if None in figures or len(figures) == 1:
        return ", ".join(shown(recipe, value) for value in figures)
    mean = fmean(figures)
    if recipe.figure == "iterations":
        mean = round(mean)
    if not with_range:
        return shown(recipe, mean)
    low, high = (shown(recipe, f(figures), False) for f in (min, max))
    return f"{shown(recipe, mean)} ({low} to {high})"


def chosen_on(result):
    """The data by which the round was chosen, and the rates."""
    held_out = all(map(is_held_out, result.runs))
    return "validation" if held_out else "the test"


def seeds(result):
    return str(len(result.finished) or 1)


def minutes(result):
    spent = result.minutes()
    parts = [
        in_digits(part) + (f" on {model_of(device)}" if device else "")
        for device, part in spent.items()
    ]
    if len(spent) > 1:
        rounds = result.rounds()
        parts = [f"{p} ({rounds[d]} rounds)" for p, d in zip(parts, spent)]
    return " and ".join(parts)


def model_of(accelerator):
    """The model in "1 x NVIDIA H200 (cuda)"."""
    return re.sub(r"^1 x | \(\w+\)$", "", accelerator)


def processor_minutes(runs):
    """The mean minutes of a study's runs."""
    return fmean(run["cpu_seconds"] for run in runs) / 60


def in_digits(minutes):
    if minutes < 0.05:
        return "under 0.1"
    return f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}"


def reported(recipe):
    """The paper's figure and where it stands, or nothing."""
    if recipe.published is None:
        return ""
    value = f"under {recipe.published:,} steps"
    if is_share(recipe):
        # With all digits that the paper gives.
        value = f"{recipe.published:g}%"
    return f"{value} ({PAPERS[recipe.paper]}, {recipe.place})"


# The list.


def listing(output):
    """The recipes as lines of a table in plain text."""
    known = {result.name: result for result in results(output)}
    rows = [("name", "model", "paper", "here", "minutes")]
    for name, recipe in RECIPES.items():
        here = known.get(name)
        rows.append(
            (
                name,
                f"{recipe.section}: {recipe.title}",
                reported(recipe),
                summary(here) if here else "",
                minutes(here) if here else "",
            )
        )
    measured_here = {name: runs for name, _, runs in studies(output)}
    for name, study in STUDIES.items():
        runs = measured_here.get(name, [])
        spent = in_digits(processor_minutes(runs)) if runs else ""
        rows.append((name, study.section, "", f"{len(runs)} seeds", spent))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
