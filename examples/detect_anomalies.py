"""Detect anomalies in streams with a model trained on normal data.

The guide docs/guides/tasks/detect_anomalies.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/detect_anomalies.py --output docs/images/tasks
"""

import functools

import numpy as np
from common import prepare_backend
from task_guides import Record
from task_guides import lstm
from task_guides import lstm_name
from task_guides import median_row
from task_guides import run

prepare_backend()

import keras

import keras_linrec
from keras_linrec.models import SequenceRegressor

SIZES = (
    ("epochs", int, 20, "over the normal streams"),
    ("streams", int, 500, "to train on"),
    ("new", int, 100, "streams to test on, and as many for the threshold"),
    ("steps", int, 600, "of each stream"),
)


def streams(count, steps, generator):
    """Readings of a machine in normal use: two rhythms, load and noise."""

    def between(low, high):
        return generator.uniform(low, high, (count, 1))

    phase = 2 * np.pi * np.arange(steps) / between(20, 30) + between(0, 6.3)
    load = 1 + 0.5 * np.sin(np.arange(steps) / 150 + between(0, 6.3))
    wave = np.sin(phase) + 0.5 * np.sin(2 * phase + between(0, 6.3))
    noise = generator.normal(0, 0.1, (count, steps))
    return (load * wave + noise).astype("float32")[:, :, None]


def with_faults(streams, generator):
    """Copies with a fault of 40 steps each, and where it is."""
    faulty = streams.copy()
    where = np.zeros(streams.shape[:2], bool)
    for row, stream in enumerate(faulty):
        first = generator.integers(200, len(stream) - 100)
        fault = slice(first, first + 40)
        where[row, fault] = True
        kind = generator.integers(3)
        if kind == 0:  # the sensor sticks
            stream[fault] = stream[first]
        elif kind == 1:  # the machine slows down
            slower = first + np.arange(40) // 2
            stream[fault] = stream[slower]
        else:  # something rattles
            stream[fault] += generator.normal(0, 0.4, (40, 1))
    return faulty, where


def build_model():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            SequenceRegressor(
                1,
                num_layers=2,
                units=24,
                unit="rotrnn",
                unit_arguments={"theta_max": 1.0},  # periods from 6 steps on
                pooling=None,
            ),
        ]
    )


def train(model, normal, validation, epochs, rate=3e-3):
    """Train a model to predict the next step."""
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model.fit(
        normal[:, :-1],
        normal[:, 1:],
        validation_data=(validation[:, :-1], validation[:, 1:]),
        epochs=epochs,
        batch_size=16,
        verbose=2,
    )


def scores(step, streams):
    """The recent squared errors of predictions, step by step.

    A reading that is not a number scores infinity.
    """
    states = step.initial_states(batch_size=len(streams))
    first = streams[:, 0]
    expected = np.where(np.isfinite(first), first, 0)
    score = np.zeros(len(streams))
    every = []
    for now in np.moveaxis(streams, 1, 0):
        broken = ~np.isfinite(now)  # for the model, as expected
        now = np.where(broken, expected, now)
        error = np.square(now - expected)[:, 0]
        score = 0.8 * score + 0.2 * error  # a mean over about five steps
        every.append(np.where(broken[:, 0], np.inf, score))
        expected, *states = step.predict_on_batch([now, *states])
    return np.stack(every, axis=1)


def threshold(normal_scores, skipped=100):
    """A score that one normal stream in a hundred exceeds, once it has begun.

    The model needs some steps to recognise the rhythm.
    """
    return np.quantile(normal_scores[:, skipped:].max(axis=1), 0.99)


def precision_and_recall(alarms, faults, skipped=100, delay=30):
    """The share of alarms that are right, and of streams whose fault is found.

    An alarm is a stretch of steps. It is right if it begins during a fault or
    within `delay` steps after it.
    """
    alarms = alarms[:, skipped:]
    begins = alarms & ~np.pad(alarms, ((0, 0), (1, 0)))[:, :-1]
    late = np.stack([np.roll(faults, k, axis=1) for k in range(delay + 1)])
    right = begins & late.any(axis=0)[:, skipped:]
    precision = right.sum() / max(1, begins.sum())
    return precision, right.any(axis=1).mean()


def build_lstm():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            lstm(60, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )


def deviations(streams):
    """The recent squared distance from the mean of the last 30 steps."""
    sums = np.cumsum(np.pad(streams[:, :, 0], ((0, 0), (31, 0))), axis=1)
    mean = (sums[:, 30:] - sums[:, :-30])[:, : streams.shape[1]] / 30
    return smoothed(np.square(streams[:, :, 0] - mean))


def whole_scores(model, streams):
    """`scores` of a model that has no step, from whole streams."""
    predicted = model.predict(streams[:, :-1], verbose=0)
    expected = np.concatenate([streams[:, :1], predicted], axis=1)
    return smoothed(np.square(streams - expected)[:, :, 0])


def smoothed(errors):
    score, every = 0, []
    for error in errors.T:
        score = 0.8 * score + 0.2 * error
        every.append(score)
    return np.stack(every, axis=1)


def measure(options):
    record, example = Record("squared error of the next step"), None
    models = {"RotRNN": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        normal, validation, held_out, other = (
            streams(count, options.steps, generator)
            for count in (options.streams, *[options.new] * 3)
        )

        sets = normal, validation, options.epochs
        faulty, faults = with_faults(other, generator)
        data = held_out, faulty, faults
        figures_of(record, "distance from the mean", deviations, *data)
        for name, build in models.items():
            model = record.train(name, seed, build, train, sets, "val_loss")
            score = functools.partial(whole_scores, model)
            if build is build_model:
                step = keras_linrec.export_step(model)
                score = functools.partial(scores, step)
            score, limit = figures_of(record, name, score, *data)
            if example is None:
                # The median of the largest scores in a fault.
                row = median_row(np.where(faults, score, 0).max(axis=1))
                example = shown(faulty[row], faults[row], score[row], limit)
    return {**record.result(), "example": example}


def figures_of(record, name, score, held_out, faulty, faults):
    limit = threshold(score(held_out))
    found = score(faulty)
    precision, recall = precision_and_recall(found > limit, faults)
    record.figure(name, precision=precision, recall=recall)
    return found, limit


def shown(stream, faults, score, limit):
    """A stream, and its score as a multiple of the threshold."""
    first, *_, last = np.flatnonzero(faults)
    part = slice(first - 100, first + 140)
    return {
        "unit": "steps",
        "lines": {
            "stream": stream[part, 0].tolist(),
            "score / threshold": np.minimum(score[part] / limit, 5).tolist(),
        },
        "marked": [(100, 100 + int(last - first))],
    }


def main(arguments=None):
    return run("detect_anomalies", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
