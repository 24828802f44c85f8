"""Forecast two days of hourly demand with an interval for every hour.

The guide docs/guides/tasks/forecast.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/forecast.py --output docs/images/tasks
"""

import numpy as np
from common import prepare_backend
from task_guides import Record
from task_guides import lstm
from task_guides import lstm_name
from task_guides import median_row
from task_guides import run

prepare_backend()

import keras
from keras import ops

from keras_linrec.models import SequenceRegressor

SIZES = (
    ("epochs", int, 12, "over the series"),
    ("series", int, 2000, "to train on"),
    ("new", int, 400, "series to test on"),
)

PAST, AHEAD = 21 * 24, 48  # hours
QUANTILES = (0.1, 0.5, 0.9)


def demand(count, generator):
    """Series of hourly demand: days, weekends, weather and noise."""

    def between(low, high):
        return generator.uniform(low, high, (count, 1))

    hours = np.arange(PAST + AHEAD) + generator.integers(
        7 * 24, size=(count, 1)
    )
    day = np.cos(2 * np.pi * hours / 24 - between(2, 5))
    weekend = hours // 24 % 7 >= 5
    weather = np.zeros(hours.shape)
    for hour in range(1, hours.shape[1]):
        weather[:, hour] = 0.98 * weather[:, hour - 1]
        weather[:, hour] += generator.normal(0, 0.05, count)
    load = np.exp(0.3 * day - between(0.2, 0.6) * weekend + weather)
    load *= 1 + generator.normal(0, 0.05, hours.shape)
    load = load.astype("float32")
    return load[:, :PAST, None], load[:, PAST:]


def build_model():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            SequenceRegressor(
                AHEAD * len(QUANTILES),
                num_layers=2,
                units=32,
                unit="rotrnn",
                unit_arguments={"theta_max": np.pi / 6},  # up to 12 hours
                pooling="last",
            ),
            keras.layers.Reshape((AHEAD, len(QUANTILES))),
        ]
    )


def quantile_loss(true, predicted):
    """Least where a share q of the values is below the q-quantile."""
    error = ops.expand_dims(true, -1) - predicted
    quantiles = ops.convert_to_tensor(QUANTILES, error.dtype)
    return ops.mean(ops.maximum(quantiles * error, (quantiles - 1) * error))


def train(model, training, validation, epochs, rate=3e-3):
    model.compile(keras.optimizers.Adam(rate), quantile_loss)
    return model.fit(
        *training,
        validation_data=validation,
        epochs=epochs,
        verbose=2,
    )


def accuracy(predicted, true):
    """The mean error of the median, and the share of values in the interval."""
    low, median, high = np.moveaxis(np.sort(predicted, axis=-1), -1, 0)
    inside = (low <= true) & (true <= high)
    return np.abs(median - true).mean(), inside.mean()


def build_lstm():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            lstm(56),
            keras.layers.Dense(AHEAD * len(QUANTILES)),
            keras.layers.Reshape((AHEAD, len(QUANTILES))),
        ]
    )


def measure(options):
    record, example = Record("quantile loss on validation series"), None
    models = {"RotRNN": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        training = demand(options.series, generator)
        validation = demand(options.new, generator)
        past, true = demand(options.new, generator)

        data = training, validation, options.epochs
        for name, back in (("a day before", 24), ("a week before", 168)):
            # The last whole period, as often as it fits.
            hours = PAST - back + np.arange(AHEAD) % back
            error = np.abs(past[:, hours, 0] - true).mean()
            record.figure(name, error=error)
        for name, build in models.items():
            model = record.train(name, seed, build, train, data, "val_loss")
            predicted = model.predict(past, verbose=0)
            error, inside = accuracy(predicted, true)
            record.figure(name, error=error, inside=inside)
            if example is None:
                row = typical(true, predicted)
                example = shown(past[row], true[row], predicted[row])
    return {**record.result(), "example": example}


def typical(true, predicted):
    """The series with the median error."""
    median = np.sort(predicted, axis=-1)[:, :, 1]
    return median_row(np.abs(median - true).mean(axis=1))


def shown(past, true, predicted):
    """The end of a series, and its forecast."""
    low, median, high = np.sort(predicted, axis=-1).T.tolist()
    seen = past[-5 * 24 :, 0]
    first = len(seen)
    return {
        "unit": "hours",
        "lines": {
            "demand": [*seen.tolist(), *true.tolist()],
            "median": median,
        },
        "begin": {"median": first, "band": first},
        "band": [low, high],
        "band_label": "10% to 90%",
    }


def main(arguments=None):
    return run("forecast", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
