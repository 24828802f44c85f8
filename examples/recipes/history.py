"""The columns of a run's history: rounds, minutes, what was watched."""


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


def watched(history):
    """The columns of what was watched: a norm for each layer."""
    return [
        values for name, values in history.items() if name.startswith("layer ")
    ]


def present(values):
    return [value for value in values if value is not None]
