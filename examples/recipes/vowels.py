"""Japanese Vowels: twelve channels of nine speakers, whole or with gaps.

The data set of Kudo, Toyama and Shimbo (1999) has 640 utterances of 7 to 29
steps, which the package `aeon` ships among its data:

    pip install --no-deps aeon
"""

import importlib.util
from pathlib import Path

import numpy as np
from common import refuse
from recipes.tasks import IrregularTask

NAME = "JapaneseVowels"


def vowels(options, seed, missing=0.0, dropped=0.0, time_deltas=False):
    """Which of nine speakers said the vowels.

    A step has the twelve channels, twelve flags for the values that are there,
    and the time since the step before.

    Args:
        missing: float, the share of values that are missing.
        dropped: float, the share of steps that are left out.
        time_deltas: whether the models get the lengths of the steps as such.
    """
    parts = []
    for number, part in enumerate(("TRAIN", "TEST")):
        sequences, labels = read(folder_of(options.data), part)
        if number == 0:
            steps = np.concatenate(sequences)
            mean, deviation = steps.mean(axis=0), steps.std(axis=0)
        scaled = [(sequence - mean) / deviation for sequence in sequences]
        gaps = (missing, dropped, np.random.default_rng([seed, number]))
        parts.append(([with_gaps(s, *gaps) for s in scaled], labels))
    return IrregularTask(*parts, time_deltas)


def folder_of(data):
    """The folder that was given, or that of the installed package."""
    if data is not None:
        return data
    found = importlib.util.find_spec("aeon")
    if found is None:
        raise SystemExit(
            f"--data: expected a folder with {NAME}_TRAIN.ts, or the package "
            "aeon (pip install --no-deps aeon). Received: neither"
        )
    (folder,) = found.submodule_search_locations
    return Path(folder) / "datasets" / "data" / NAME


def read(folder, part):
    """Sequences, a list of (time, 12), and the numbers of their speakers."""
    path = folder / f"{NAME}_{part}.ts"
    if not path.exists():
        refuse(path, "a file of sequences in the format .ts", "no such file")
    _, data = path.read_text().split("@data", 1)
    sequences, labels = [], []
    for line in data.split():
        *channels, label = line.split(":")
        values = [np.array(c.split(","), "float32") for c in channels]
        sequences.append(np.stack(values, axis=-1))
        labels.append(int(label) - 1)
    return sequences, np.array(labels, "int32")


def with_gaps(sequence, missing, dropped, generator):
    """A sequence without some steps and values: (time, 2 features + 1)."""
    time, features = sequence.shape
    kept = generator.random(time) >= dropped
    # At least one step is there.
    kept[generator.integers(time)] = True
    present = generator.random((time, features)) >= missing
    # Each step lasts since the one before it that is there.
    deltas = np.diff(np.flatnonzero(kept), prepend=-1)[:, None]
    values = np.where(present, sequence, 0.0)[kept]
    return np.concatenate([values, present[kept], deltas], 1).astype("float32")
