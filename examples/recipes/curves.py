"""The plots of the page of results, and the one of the front page.

Several seeds are drawn as their median, and a band from the lowest to the
highest.
"""

import math
import re
from pathlib import Path
from statistics import median

from pictures import FAINT
from pictures import legend_below
from pictures import new_figure
from pictures import save
from recipes.history import accelerators
from recipes.history import minutes_of
from recipes.history import present
from recipes.history import scores as scores_of
from recipes.history import watched
from recipes.studies import medians

# The recipes of the front page: three seeds each.
FRONT = ("speech-rotrnn", "speech-lssl", "speech-torch-lstm")
# What the axes along curves show.
MINUTES = "minutes of CPU time"
SECONDS = "seconds of CPU time"
SEQUENCES = "training sequences"
STEPS = "training steps"


def slug(title):
    return "-".join(re.findall(r"\w+", title.lower()))


# Recipes.


def draw(section, found, output):
    """Draw the results of a section, all of one kind of figure.

    Not where every run was measured once or twice: that is no curve.
    """
    kind = found[0].recipe.figure
    name = "accuracy" if kind == "accuracy" else "loss"
    measured = [present(scores_of(run["history"], name)) for run in of(found)]
    if max(map(len, measured)) < 3:
        return
    path = Path(output) / f"{slug(section)}.png"
    if kind == "growth":
        figure = norms(found)
    elif kind == "iterations":
        figure = descents(found)
    else:
        figure = scores(kind, found)
    save(figure, path)


def scores(kind, found):
    """Accuracies or bits of the test, as medians and bands."""
    figure, (axes,) = new_figure(height=3.4 + 0.2 * len(found))
    along = places_of(kind, found)
    for number, result in enumerate(found):
        runs = [
            points(PLACES[along](result.recipe, run["history"]), values)
            for run in result.runs
            for values in [SCORES[kind](run["history"])]
        ]
        draw_runs(axes, runs, f"C{number}", result.recipe.title)
    if kind == "accuracy":
        worst = min(last(SCORES[kind](run["history"])) for run in of(found))
        axes.set_ylim(lowest_drawn(worst), 100.5)
    axes.set_xlabel(along)
    axes.set_ylabel(f"{LABELS[kind]}, {data_of(found)}")
    shorten_numbers(axes, along)
    legend_below(figure, axes)
    return figure


def descents(found):
    """The loss of every seed until its goal."""
    figure, (axes,) = new_figure(height=3.4 + 0.2 * len(found))
    for number, result in enumerate(found):
        for run in result.runs:
            history = run["history"]
            places = PLACES[STEPS](result.recipe, history)
            axes.semilogy(
                *zip(*points(places, scores_of(history, "loss"))),
                color=f"C{number}",
                # Once for all seeds.
                label=result.recipe.title if run is result.runs[0] else None,
            )
    goal = found[0].recipe.goal
    axes.axhline(goal, color="0.4", linestyle="--", label="the goal")
    # A random start may be a hundred times as bad as guessing.
    axes.set_ylim(top=min(axes.get_ylim()[1], 15 * goal))
    axes.set_xlabel(STEPS)
    axes.set_ylabel(f"loss, {data_of(found)}")
    legend_below(figure, axes, columns=1)
    return figure


def norms(found):
    """What was watched of every layer, a panel for each model."""
    figure, panels = new_figure(len(found), 2.4, sharex=True, sharey=True)
    for axes, result in zip(panels, found):
        histories = [run["history"] for run in result.runs]
        for layer, columns in enumerate(zip(*map(watched, histories))):
            runs = [
                points(history["images"], values)
                for history, values in zip(histories, columns)
            ]
            draw_runs(axes, runs, f"C{layer}", f"layer {layer + 1}")
        axes.set_title(result.recipe.title)
        axes.set_ylabel("mean norm of state")
    # The panels share it.
    panels[-1].set_ylim(bottom=0)
    panels[-1].set_xlabel(SEQUENCES)
    shorten_numbers(panels[-1], SEQUENCES)
    legend_below(figure, panels[0], columns=3)
    return figure


def draw_runs(axes, runs, color, label):
    """Draw the points of several seeds as a median and a band."""
    by_round = list(zip(*runs))
    places = [median(x for x, _ in points) for points in by_round]
    values = [[y for _, y in points] for points in by_round]
    axes.plot(places, list(map(median, values)), color=color, label=label)
    if len(runs) > 1:
        low, high = list(map(min, values)), list(map(max, values))
        axes.fill_between(places, low, high, color=color, **FAINT)


def points(places, values):
    """Pairs of a place and a value, where there is one."""
    return [p for p in zip(places, values) if p[1] is not None]


def data_of(found):
    """What the curves are measured on."""
    held_out = {"validation_loss" in run["history"] for run in of(found)}
    names = {(True,): "validation", (False,): "test"}
    return names.get(tuple(held_out), "test or validation")


def of(found):
    return [run for result in found for run in result.runs]


def last(values):
    return present(values)[-1]


def lowest_drawn(accuracy):
    """A multiple of ten, so that the end of the worst curve is seen well."""
    return max(0, 10 * ((100 - 4 * (100 - accuracy)) // 10))


def places_of(kind, found):
    """What the curves are drawn against: a key of `PLACES`."""
    if kind == "iterations":
        return STEPS
    histories = [run["history"] for run in of(found)]
    # Minutes of a GPU and of a processor have no axis in common.
    if kind == "growth" or any(map(any, map(accelerators, histories))):
        return SEQUENCES
    longest = max(history["cpu_seconds"][-1] for history in histories)
    return MINUTES if longest >= 60 else SECONDS


def shorten_numbers(axes, along):
    """Write 100k and 6M in place of 100000 and a factor of 1e6."""
    from matplotlib.ticker import EngFormatter

    # Of minutes it would make milliminutes.
    if along == SEQUENCES:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def minutes_until(recipe, history):
    return [sum(spent.values()) for spent in minutes_of(history)]


PLACES = {
    MINUTES: minutes_until,
    SECONDS: lambda recipe, history: history["cpu_seconds"],
    SEQUENCES: lambda recipe, history: history["images"],
    STEPS: lambda recipe, history: [
        images // recipe.batch_size for images in history["images"]
    ],
}
LABELS = {"accuracy": "accuracy, %", "bits": "bits of a byte"}
SCORES = {
    "accuracy": lambda history: scaled(scores_of(history, "accuracy"), 100),
    "bits": lambda history: scaled(scores_of(history, "loss"), 1 / math.log(2)),
}


def scaled(values, factor):
    return [None if v is None else factor * v for v in values]


# Studies.


def draw_study(study, runs, output):
    """Draw the rows of a study against its columns, if these are numbers."""
    if study.scales is None:
        return
    columns, rows = medians(runs)
    figure, (axes,) = new_figure(height=3.6)
    for name, values in rows.items():
        axes.plot(columns, values, ".-", label=name)
    axes.set_xscale(study.scales[0])
    axes.set_yscale(study.scales[1])
    axes.set_ylim(bottom=study.lowest)
    axes.set_xlabel(study.axes[0])
    axes.set_ylabel(study.axes[1])
    legend_below(figure, axes)
    save(figure, Path(output) / f"{slug(study.section)}.png")


# The front page.


def draw_front(found, folder):
    """Draw raw speech against minutes, each line with its name and figure."""
    chosen = {r.name: r for r in found if r.name in FRONT}
    if len(chosen) < len(FRONT):
        return
    figure, (axes,) = new_figure(height=3.1)
    for number, name in enumerate(FRONT):
        result = chosen[name]
        runs = [
            points(
                minutes_until(result.recipe, run["history"]),
                SCORES["accuracy"](run["history"]),
            )
            for run in result.runs
        ]
        draw_runs(axes, runs, f"C{number}", result.recipe.title)
        place, value = FRONT_LABELS[name]
        mean = sum(result.figures()) / len(runs)
        axes.text(
            place,
            value,
            f"{result.recipe.title} {mean:.1f}%",
            color=f"C{number}",
            weight="bold",
        )
    axes.set_xlim(0, 9.8)
    axes.set_ylim(40, 108)
    axes.set_yticks(range(40, 101, 10))
    axes.set_xlabel("minutes of training (CPU time)")
    axes.set_ylabel("new recordings recognised, %")
    save(figure, Path(folder) / "raw_speech.png")


# Beside the curves, which cross.
FRONT_LABELS = {
    "speech-rotrnn": (5.3, 102.5),
    "speech-lssl": (1.5, 102.5),
    "speech-torch-lstm": (5.9, 84),
}
