"""The page of results, made from the JSON files of the recipes."""

import re
from pathlib import Path
from statistics import fmean

from recipes import record
from recipes.table import PAPERS
from recipes.table import RECIPES

BEGIN = "<!-- Made by `python examples/reproduce.py --page`. -->"
END = "<!-- The end of what is made. -->"


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
        """The processor's minutes of training for a finished run, or `None`."""
        spent = [run["history"]["cpu_seconds"][-1] for run in self.finished]
        return fmean(spent) / 60 if spent else None

    def falls_short(self):
        """Whether the mean is worse than the paper's figure."""
        figures, published = self.figures(), self.recipe.published
        if published is None or not figures:
            return False
        if is_cost(self.recipe):
            return None in figures or fmean(figures) > published
        return fmean(figures) < published


def is_cost(recipe):
    """Whether less is better."""
    return recipe.figure != "accuracy"


def figure(recipe, run):
    """The figure that a recipe reports, or `None` where it was not reached."""
    history = run["history"]
    if recipe.figure == "accuracy":
        return 100 * last(history["test_accuracy"])
    if history["loss"][-1] >= recipe.goal:
        return None
    return history["images"][-1] // recipe.batch_size


def last(values):
    """The last value of a column that is there."""
    return [value for value in values if value is not None][-1]


def shown(recipe, value):
    if value is None:
        return "not reached"
    return f"{value:.1f}%" if recipe.figure == "accuracy" else f"{value:,}"


def results(output):
    """The results of the recipes that have a file, in the table's order."""
    for name, recipe in RECIPES.items():
        path = Path(output) / f"{name}.json"
        if path.exists():
            yield Result(name, recipe, record.read(path)["runs"])


def summary(result):
    """The figure of all seeds in words."""
    recipe, figures = result.recipe, result.figures()
    if not figures:
        run = result.runs[0]
        done = run["history"]["round"][-1]
        so_far = f"in training, round {done} of {recipe.rounds}"
        if recipe.figure == "accuracy":
            so_far = f"{shown(recipe, figure(recipe, run))} {so_far}"
        return so_far
    if None in figures or len(figures) == 1:
        return ", ".join(shown(recipe, value) for value in figures)
    mean = fmean(figures)
    if recipe.figure != "accuracy":
        mean = round(mean)
    low, high = (shown(recipe, f(figures)) for f in (min, max))
    return f"{shown(recipe, mean)} ({low} to {high})"


def minutes(result):
    spent = result.minutes()
    return "" if spent is None else f"{spent:.0f}"


def reported(recipe):
    """The paper's figure and where it stands, or nothing."""
    if recipe.published is None:
        return ""
    under = "under " if is_cost(recipe) else ""
    value = (
        f"{recipe.published:g}%"
        if recipe.figure == "accuracy"
        else f"{recipe.published:,}"
    )
    return f"{under}{value} ({PAPERS[recipe.paper]}, {recipe.place})"


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
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(
            text.ljust(width) for text, width in zip(row, widths)
        ).rstrip()
        for row in rows
    )


# The page.


def write(output):
    """Draw all curves, and write the made part of the page anew."""
    for section in {result.recipe.section for result in results(output)}:
        draw(section, output)
    path = Path(output).parent / "results.md"
    path.write_text(renewed(path.read_text(), output))


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
    return "\n".join(
        section_text(title, found, output) for title, found in sections.items()
    )


def section_text(title, found, output):
    lines = [f"## {title}", ""]
    lines += table(
        ("model", "parameters", "paper", "here", "seeds", "minutes", "recipe"),
        [
            (
                result.recipe.title,
                f"{result.runs[0]['parameters']:,}",
                reported(result.recipe),
                summary(result),
                str(len(result.finished) or 1),
                minutes(result),
                f"`{result.name}`",
            )
            for result in found
        ],
    )
    for result in found:
        lines += measured(result)
    picture = f"{slug(title)}.png"
    if (Path(output) / picture).exists():
        lines += [
            f"![{title}: the test during training](results/{picture})",
            "",
        ]
    for result in found:
        if result.recipe.note and result.falls_short():
            lines += [f"{result.recipe.title}: {result.recipe.note}", ""]
    return "\n".join(lines)


def measured(result):
    """What was measured of the trained models, the mean over the seeds."""
    of_runs = [run["measurements"] for run in result.finished]
    of_runs = [run for run in of_runs if run]
    if not of_runs:
        return []
    means = [fmean(run[name] for run in of_runs) for name in of_runs[0]]
    return table(
        (result.recipe.title, *of_runs[0]),
        [("accuracy", *(f"{100 * mean:.1f}%" for mean in means))],
    )


def table(header, rows):
    return [
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def slug(title):
    return "-".join(re.findall(r"\w+", title.lower()))


# The curves.


def draw(section, output):
    """Draw the tests of all runs of a section against processor time."""
    from matplotlib.figure import Figure

    found = [r for r in results(output) if r.recipe.section == section]
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    kind = found[0].recipe.figure
    for number, result in enumerate(found):
        for run in result.runs:
            label = result.recipe.title if run is result.runs[0] else None
            axes.plot(
                *curve(kind, run["history"]),
                color=f"C{number}",
                alpha=0.8 if label else 0.4,
                label=label,
            )
    if kind == "accuracy":
        axes.set_ylabel("accuracy of the test, %")
        axes.set_xlabel("minutes of one processor")
    else:
        axes.set_ylabel("loss in training")
        axes.set_xlabel("iterations")
    axes.legend()
    axes.grid(alpha=0.3)
    canvas.savefig(Path(output) / f"{slug(section)}.png", dpi=100)


def curve(kind, history):
    """The coordinates of a run's points."""
    if kind != "accuracy":
        steps = range(1, len(history["loss"]) + 1)
        return steps, history["loss"]
    pairs = zip(history["cpu_seconds"], history["test_accuracy"])
    points = [(s / 60, 100 * a) for s, a in pairs if a is not None]
    return tuple(zip(*points))
