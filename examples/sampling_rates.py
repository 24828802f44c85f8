"""Train at one sampling rate; test at another, and with missing steps.

A deep LSSL learns to classify synthetic sounds of one second: tones, chirps and
beats. It is then tested on such sounds at half the sampling rate, with and
without `step_rescale = 2`, and with some steps dropped at random, with and
without the durations of the remaining steps in `time_deltas`:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/sampling_rates.py

This takes about a minute on two cores. The weights are the same in every row.
`--output DIR` plots the accuracies.
"""

import argparse

import numpy as np
from common import add_numbers
from common import add_plot
from common import prepare_backend
from common import save_plot

prepare_backend()

import keras

from keras_linrec.models import SequenceClassifier

RATE = 512  # steps per second
KINDS = (
    "low tone",
    "middle tone",
    "high tone",
    "rising chirp",
    "falling chirp",
    "slow beat",
    "fast beat",
    "tone that fades",
)
DROPPED = (0.3, 0.5, 0.7)


def main(arguments=None):
    options = parse(arguments)
    table = measure(options)
    print("\n| test | step lengths unknown | step lengths given |")
    print("|---|---|---|")
    for name, unknown, given in table:
        given = "" if given is None else f"{given:.1%}"
        print(f"| {name} | {unknown:.1%} | {given} |")
    if options.output:
        plot(table, options)
    return table


def study(seed):
    """The table of `recipes/studies.py`."""
    rows = {name: row for name, *row in measure(parse([f"--seed={seed}"]))}
    return ("step lengths unknown", "step lengths given"), rows


def measure(options):
    """A row for each test: its name, and the accuracies in it.

    They are those without and with the lengths of the steps, or `None`.
    """
    keras.utils.set_random_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    train = sounds(options.train_size, generator)
    test = sounds(options.test_size, generator)
    model = build_model()
    model.compile(
        keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(
                4e-3, options.epochs * -(-options.train_size // 32)
            )
        ),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(*train, epochs=options.epochs, verbose=2)
    table = [("as in training", accuracy(model, *test), None)]
    table.append(("half the sampling rate", *half_rate(model, *test)))
    for share in DROPPED:
        table.append(
            (
                f"{share:.0%} of the steps dropped",
                *with_steps_dropped(model, *test, share, generator),
            )
        )
    return table


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("train-size", int, 1600, "training sounds"),
        ("test-size", int, 400, "test sounds"),
        ("epochs", int, 12, "training epochs"),
        ("seed", int, 0, "seed of sounds and weights"),
    )
    add_plot(parser, "the accuracies")
    return parser.parse_args(arguments)


def sounds(count, generator):
    """Sounds (count, steps, 1) and their kinds, as indices of `KINDS`."""
    kinds = generator.integers(len(KINDS), size=count)
    time = np.arange(RATE) / RATE
    waves = np.stack([wave(KINDS[kind], time, generator) for kind in kinds])
    waves = waves + 0.1 * generator.standard_normal(waves.shape)
    return waves[..., None].astype("float32"), kinds.astype("int32")


def wave(kind, time, generator):
    """A sound of the given kind, with random pitch, phase and loudness."""
    pitch = generator.uniform(0.85, 1.15)
    tone = {"low tone": 4, "high tone": 16}.get(kind, 8) * pitch
    phase = 2 * np.pi * tone * time
    if kind == "rising chirp":
        phase = 2 * np.pi * pitch * (4 * time + 6 * time**2)
    elif kind == "falling chirp":
        phase = 2 * np.pi * pitch * (16 * time - 6 * time**2)
    loudness = generator.uniform(0.7, 1.3)
    if kind.endswith("beat"):
        beats = 2 if kind == "slow beat" else 4
        shift = generator.uniform(0, 2 * np.pi)
        loudness = loudness * np.cos(np.pi * beats * time + shift)
    elif kind == "tone that fades":
        loudness = loudness * np.exp(-4 * time)
    return loudness * np.sin(phase + generator.uniform(0, 2 * np.pi))


def build_model():
    """A deep LSSL with timescales from a few steps to the whole sound."""
    return SequenceClassifier(
        len(KINDS),
        num_layers=2,
        units=32,
        unit="lssl",
        unit_arguments={
            "state_size": 32,
            "dt_min": 1 / RATE,
            "dt_max": 30 / RATE,
        },
    )


def accuracy(model, sequences, kinds, time_deltas=None):
    """The share of sounds that are classified correctly."""
    correct = 0
    for start in range(0, len(kinds), 100):
        part = slice(start, start + 100)
        given = {}
        if time_deltas is not None:
            given["time_deltas"] = time_deltas[part]
        scores = keras.ops.convert_to_numpy(model(sequences[part], **given))
        correct += np.sum(scores.argmax(axis=1) == kinds[part])
    return correct / len(kinds)


def half_rate(model, sequences, kinds):
    """The accuracies on every second step, without and with dt doubled."""
    sequences = sequences[:, ::2]
    unknown = accuracy(model, sequences, kinds)
    model.step_rescale = 2.0
    given = accuracy(model, sequences, kinds)
    model.step_rescale = 1.0
    return unknown, given


def with_steps_dropped(model, sequences, kinds, share, generator):
    """The accuracies on the remaining steps, without and with their lengths."""
    count, time, _ = sequences.shape
    remaining = time - round(share * time)
    order = generator.random((count, time)).argsort(axis=1)
    kept = np.sort(order[:, :remaining], axis=1)
    sequences = np.take_along_axis(sequences, kept[..., None], axis=1)
    # Each step lasts since the previous remaining one.
    time_deltas = np.diff(kept, axis=1, prepend=-1).astype("float32")
    unknown = accuracy(model, sequences, kinds)
    return unknown, accuracy(model, sequences, kinds, time_deltas)


def plot(table, options):
    from pictures import legend_below
    from pictures import new_figure

    figure, (axes,) = new_figure(height=4)
    names, unknown, given = zip(*table)
    places = np.arange(len(names))
    axes.barh(places - 0.2, unknown, 0.4, label="step lengths unknown")
    told = [share or 0.0 for share in given]
    axes.barh(places + 0.2, told, 0.4, label="step lengths given")
    axes.axvline(1 / len(KINDS), color="gray", ls="--", label="chance")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("accuracy")
    legend_below(figure, axes)
    save_plot(figure, options, "sampling_rates.png")


if __name__ == "__main__":
    main()
