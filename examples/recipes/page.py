"""The page of results, made from the JSON files of the recipes."""

import math
import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from textwrap import fill

from recipes import curves
from recipes import record
from recipes.history import accelerators
from recipes.history import minutes_of
from recipes.history import present
from recipes.history import scores
from recipes.history import watched
from recipes.recipe import PAPERS
from recipes.studies import STUDIES
from recipes.studies import medians
from recipes.table import ABOUT
from recipes.table import RECIPES

BEGIN = "<!-- Made by `python examples/reproduce.py --page`. -->"
END = "<!-- The end of what is made. -->"
OVERVIEW = (
    "Five of these eight are below the paper's figure: the LSSLs train for 6 "
    "epochs, of the paper's 200, and the RotRNN is smaller. The notes below "
    "the tables of the tasks have all differences. Raw speech, copying and "
    "text have no figure in the papers."
)


# The sections that other packages and papers report too.
FIRST = (
    "MNIST, pixel by pixel",
    "MNIST, pixel by pixel, permuted",
    "CIFAR-10, pixel by pixel",
    "CIFAR-10, pixel by pixel, grey",
    "CIFAR-10 in rows, padded with noise",
    "Film reviews, byte by byte",
    "ListOps, 500 to 2,000 tokens",
    "Adding two numbers",
    "Copying ten symbols",
    "Characters of a text, some steps ahead",
)
BESIDE = (
    "The tasks that most papers report come first. What differs from the paper "
    "stands under the table of each section."
)
OTHERS = "The tasks of the first table by other models, then others."


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


def summary(result):
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


# The page.


def write(output):
    """Draw all curves, and write the made part of the page anew."""
    for section in {result.recipe.section for result in results(output)}:
        draw(section, output)
    for _, study, runs in studies(output):
        curves.draw_study(study, runs, output)
    docs = Path(output).parent
    curves.draw_front(list(results(output)), docs / "images")
    path = docs / "results.md"
    path.write_text(renewed(path.read_text(), output))


def draw(section, output):
    """Draw the runs of a section, if there are any."""
    found = [r for r in results(output) if r.recipe.section == section]
    if found:
        curves.draw(section, found, output)


def renewed(text, output):
    """A page's text with its made part made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{made(output)}\n{END}{after}"


def made(output):
    """The part of the page that follows from the files of results."""
    sections = {}
    for result in results(output):
        sections.setdefault(result.recipe.section, []).append(result)
    texts = [overview(sections)]
    texts += [section_text(*section, output) for section in sections.items()]
    texts += [study_text(*found, output) for found in studies(output)]
    return "\n".join(texts)


def overview(sections):
    """The figures beside those of papers, and those of other tasks."""
    order = sorted(sections, key=place_of)
    found = [result for title in order for result in sections[title]]
    lines = []
    for title, about, with_paper in (
        ("Beside the papers", BESIDE, True),
        ("Tasks without a figure of a paper", OTHERS, False),
    ):
        rows = [
            overview_row(result, with_paper)
            for result in found
            if (result.recipe.published is not None) == with_paper
        ]
        if rows:
            header = ("task", "model", *(["paper"] if with_paper else []))
            header += ("here", "chosen on", "seeds", "minutes", "recipe")
            lines += [f"## {title}", "", fill(about, 80), ""]
            lines += table(header, rows)
    return "\n".join(lines)


def place_of(section):
    """Sections that readers look for first, then the others, as they come."""
    return FIRST.index(section) if section in FIRST else len(FIRST)


def anchor(section):
    """The identifier that the site gives to a heading."""
    return re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")


def overview_row(result, with_paper):
    section = result.recipe.section
    return (
        f"[{section}](#{anchor(section)})",
        result.recipe.title,
        *([reported(result.recipe)] if with_paper else []),
        summary(result),
        chosen_on(result),
        seeds(result),
        minutes(result),
        f"`{result.name}`",
    )


def section_text(title, found, output):
    columns = {
        "model": lambda result: result.recipe.title,
        "parameters": lambda result: f"{result.runs[0]['parameters']:,}",
        "paper": lambda result: reported(result.recipe),
        "here": summary,
        "chosen on": chosen_on,
        "seeds": seeds,
        "minutes": minutes,
        "recipe": lambda result: f"`{result.name}`",
    }
    if not any(map(columns["paper"], found)):
        del columns["paper"]
    rows = [[text(result) for text in columns.values()] for result in found]
    lines = [f"## {title}", ""]
    if title in ABOUT:
        lines += [fill(ABOUT[title], 80), ""]
    lines += table(columns, rows)
    lines += measured(found)
    lines += picture(title, output)
    lines += notes(found)
    return "\n".join(lines)


def notes(found):
    """What differs from the papers, once where it is the same."""
    titles = {}
    for result in found:
        titles.setdefault(result.recipe.note, []).append(result.recipe.title)
    return [
        line
        for note, of_models in titles.items()
        if note
        for line in (fill(f"{' and '.join(of_models)}: {note}", 80), "")
    ]


def study_text(name, study, runs, output):
    columns, rows = medians(runs)
    lines = [f"## {study.section}", "", fill(study.about, 80), ""]
    cells = [
        [row, *("" if v is None else study.form.format(v) for v in values)]
        for row, values in rows.items()
    ]
    lines += table((study.header, *map(str, columns)), cells)
    lines += picture(study.section, output)
    spent = in_digits(processor_minutes(runs))
    lines += [f"`{name}`: {len(runs)} seeds, {spent} minutes each.", ""]
    return "\n".join(lines)


def picture(title, output):
    """The lines that show the curves of a section, if they are drawn."""
    name = f"{curves.slug(title)}.png"
    if not (Path(output) / name).exists():
        return []
    return [f"![{title}: the curves](results/{name})", ""]


def measured(found):
    """What was measured of the trained models: mean, lowest and highest."""
    rows = {}
    for result in found:
        runs = [run["measurements"] for run in result.finished]
        runs = [run for run in runs if run]
        if runs:
            names = tuple(runs[0])
            cells = (in_words(n, [run[n] for run in runs]) for n in names)
            rows.setdefault(names, []).append((result.recipe.title, *cells))
    return [
        line
        for names, of_models in rows.items()
        for line in table(("model", *names), of_models)
    ]


# Measurements that are no shares.
NUMBERS = ("largest eigenvalue", "trace", "condition number")


def in_words(name, values):
    form = "{:.3g}" if name in NUMBERS else "{:.1%}"
    mean, low, high = (form.format(f(values)) for f in (fmean, min, max))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def table(header, rows):
    return [
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
