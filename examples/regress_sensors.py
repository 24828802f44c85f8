"""Estimate the charge of batteries from their sensors, step by step.

The guide docs/guides/tasks/regress_sensors.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/regress_sensors.py --output docs/images/tasks
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

from keras_linrec.layers import LSSL
from keras_linrec.models import SequenceRegressor

SIZES = (
    ("epochs", int, 15, "over the batteries"),
    ("batteries", int, 1000, "to train on"),
    ("new", int, 200, "batteries to test on"),
    ("minutes", int, 600, "of use of each battery, one step a minute"),
)


def batteries(count, minutes, generator):
    """Voltage, current and temperature of batteries in use, and their charge.

    The capacity and the resistance of a battery, and its charge at the start,
    differ from the next one's, and no sensor measures them.
    """

    def between(low, high):
        return generator.uniform(low, high, (count, 1))

    # A load that changes every half hour, and sometimes charges.
    loads = generator.uniform(-0.5, 1, (count, -(-minutes // 30)))
    current = np.repeat(loads, 30, axis=1)[:, :minutes]
    used = np.cumsum(current, axis=1) / 60 / between(2, 4)
    charge = np.clip(between(0.6, 1) - used, 0, 1)
    temperature = between(5, 35) + 5 * np.cumsum(
        generator.normal(0, 0.05, current.shape), axis=1
    )
    resistance = between(0.1, 0.3) * (1 + 0.03 * (25 - temperature))
    voltage = 3.4 + 0.4 * charge + 0.4 * charge**4 - resistance * current
    sensors = np.stack([voltage, current, temperature], axis=-1)
    sensors += generator.normal(0, [0.05, 0.05, 0.5], sensors.shape)
    return sensors.astype("float32"), charge.astype("float32")[:, :, None]


def build_model(sensors):
    scale = keras.layers.Normalization()
    scale.adapt(sensors)  # each sensor to mean 0, standard deviation 1
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            scale,
            SequenceRegressor(
                1,
                num_layers=2,
                units=32,
                # A step is a minute; use over all ten hours matters, and what
                # happens within six minutes hardly does.
                unit=LSSL.for_signals(
                    32,
                    sampling_rate=1 / 60,
                    longest_memory=10 * 3600,
                    shortest_memory=360,
                    state_size=16,
                ),
                pooling=None,  # an estimate after every step
            ),
        ]
    )


def train(model, training, validation, epochs, rate=5e-3):
    model.compile(
        keras.optimizers.Adam(rate),
        "mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="error")],
    )
    return model.fit(
        *training,
        validation_data=validation,
        epochs=epochs,
        batch_size=16,
        verbose=2,
    )


def build_lstm(sensors):
    scale = keras.layers.Normalization()
    scale.adapt(sensors)
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            scale,
            lstm(28, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )


def measure(options):
    record, example = Record("error of the charge on validation data"), None
    builders = {"LSSL": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        training = batteries(options.batteries, options.minutes, generator)
        validation, new = (
            batteries(options.new, options.minutes, generator) for _ in range(2)
        )

        data = training, validation, options.epochs
        record.figure(
            "mean of the training data",
            error=np.sqrt(np.mean((new[1] - training[1].mean()) ** 2)),
        )
        for name, builder in builders.items():
            build = functools.partial(builder, training[0])
            model = record.train(name, seed, build, train, data, "val_error")
            estimates = model.predict(new[0], verbose=0)
            error = np.sqrt(np.mean(np.square(estimates - new[1])))
            record.figure(name, error=error)
            if example is None:
                example = shown(new[1][:, :, 0], estimates[:, :, 0])
    return {**record.result(), "example": example}


def shown(charges, estimates):
    """The battery with the median error."""
    row = median_row(np.square(estimates - charges).mean(axis=1))
    return {
        "unit": "minutes",
        "lines": {
            "charge": charges[row].tolist(),
            "estimate": estimates[row].tolist(),
        },
    }


def main(arguments=None):
    return run("regress_sensors", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
