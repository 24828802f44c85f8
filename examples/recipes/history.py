"""The columns of a run's history: rounds, minutes, what was watched."""

import math


def minutes_of(history):
    """The minutes until each round, by accelerator, or `None`: a processor.

    A run may go on without the accelerator that it began with.
    """
    spent, until = {}, []
    for index, device in enumerate(accelerators(history)):
        clock = history["seconds" if device else "cpu_seconds"]
        seconds = clock[index] - (clock[index - 1] if index else 0.0)
        spent[device] = spent.get(device, 0.0) + seconds / 60
        until.append(dict(spent))
    return until


def accelerators(history):
    """The accelerator of each round, or `None`: a processor."""
    rounds = len(history["cpu_seconds"])
    return history.get("accelerator", [None] * rounds)


def best_round(figure, rows):
    """The index of the round that what is held out chooses.

    Args:
        figure: string, that of the recipe.
        rows: list of dictionaries, the rounds.
    """
    validated = [i for i, row in enumerate(rows) if "validation_loss" in row]
    if figure in ("iterations", "growth"):
        return validated[-1]
    return min(validated, key=lambda index: _demerits(figure, rows[index]))


def _demerits(figure, row):
    """What the best round has least of; a loss that is NaN is the worst."""
    loss = row["validation_loss"]
    loss = math.inf if math.isnan(loss) else loss
    if figure == "accuracy":
        return -row["validation_accuracy"], loss
    return (loss,)


def scores(history, name):
    """The losses or accuracies of rounds, on what is held out.

    Runs from before there was any have those on the test.
    """
    return history.get(f"validation_{name}") or history[f"test_{name}"]


def watched(history):
    """The columns of what was watched: a norm for each layer."""
    return [
        values for name, values in history.items() if name.startswith("layer ")
    ]


def present(values):
    return [value for value in values if value is not None]
