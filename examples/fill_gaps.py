"""Fill gaps in signals, and read signals sampled at irregular times.

The guide docs/guides/tasks/fill_gaps.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/fill_gaps.py --output docs/images/tasks
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

from keras_linrec.layers import LSSL
from keras_linrec.layers import Bidirectional
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceRegressor

SIZES = (
    ("epochs", int, 12, "over the signals"),
    ("signals", int, 1600, "to train on"),
    ("new", int, 400, "signals to test on"),
    ("steps", int, 300, "of each signal"),
)


def waves(count, steps, generator):
    """Sums of two waves in noise, and the higher of their frequencies."""
    time = np.arange(steps)

    def wave(frequency):
        phase = generator.uniform(0, 2 * np.pi, (count, 1))
        return np.sin(frequency * time + phase)

    low = generator.uniform(0.03, 0.08, (count, 1))
    high = generator.uniform(0.1, 0.2, (count, 1))
    signals = wave(low) + wave(high)
    signals += generator.normal(0, 0.1, signals.shape)
    return signals.astype("float32")[:, :, None], high.astype("float32")


def with_gaps(signals, generator):
    """Signals with three gaps of 20 to 40 steps, and where the gaps are.

    The second feature says whether the first was measured.
    """
    missing = np.zeros(signals.shape[:2], bool)
    for row in missing:
        for _ in range(3):
            first = generator.integers(len(row) - 40)
            row[first : first + generator.integers(20, 41)] = True
    measured = ~missing[:, :, None]
    shown = np.where(measured, signals, 0)  # a product keeps NaN
    gapped = np.concatenate([shown, measured], axis=-1)
    return gapped, missing.astype("float32")


def build_model():
    return keras.Sequential(
        [
            keras.Input((None, 2)),
            SequenceRegressor(
                1,
                num_layers=2,
                units=32,
                # Both sides of a gap say what was in it.
                unit=Bidirectional(RotRNN(32, theta_max=0.5), merge_mode="sum"),
                pooling=None,
            ),
        ]
    )


def train(model, training, validation, epochs, rate=3e-3):
    """Train on (inputs, signals, weights): only steps in gaps count."""
    inputs, signals, weights = training
    model.compile(
        keras.optimizers.Adam(rate),
        "mse",
        weighted_metrics=[keras.metrics.MeanSquaredError(name="error")],
    )
    return model.fit(
        inputs,
        signals,
        sample_weight=weights,
        validation_data=validation,
        epochs=epochs,
        batch_size=16,
        verbose=2,
    )


def interpolated(gapped, missing):
    """Straight lines over the gaps."""
    steps, filled = np.arange(missing.shape[1]), gapped[:, :, :1].copy()
    for signal, gaps in zip(filled[:, :, 0], missing.astype(bool)):
        signal[gaps] = np.interp(steps[gaps], steps[~gaps], signal[~gaps])
    return filled


def irregular(signals, generator):
    """A part of the steps of each signal, and how long each of them lasts.

    Rows are padded with zeros at the end.
    """
    count, steps, _ = signals.shape
    kept = np.zeros_like(signals)
    durations = np.zeros((count, steps), "float32")
    for row, signal in enumerate(signals):
        share = generator.uniform(0.3, 0.9)
        times = np.flatnonzero(generator.uniform(size=steps) < share)
        kept[row, : len(times)] = signal[times]
        durations[row, : len(times)] = np.diff(times, prepend=-1)
    return kept, durations


def build_irregular_model():
    signal = keras.Input((None, 1))
    durations = keras.Input((None,))  # in steps
    hidden = keras.layers.Masking()(signal)
    frequency = SequenceRegressor(
        1,
        num_layers=2,
        units=16,
        unit=LSSL(16, state_size=32, dt_min=0.005, dt_max=0.2),
    )(hidden, time_deltas=durations)
    return keras.Model([signal, durations], frequency)


def train_irregular(model, training, validation, epochs, rate=5e-3):
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return model.fit(
        *training, validation_data=validation, epochs=epochs, verbose=2
    )


def build_lstm():
    """One LSTM from the start and one from the end."""
    gapped = keras.Input((None, 2))
    forward = lstm(68, return_sequences=True)(gapped)
    backward = keras.ops.flip(gapped, axis=1)
    backward = lstm(68, return_sequences=True)(backward)
    backward = keras.ops.flip(backward, axis=1)
    both = keras.layers.concatenate([forward, backward])
    return keras.Model(gapped, keras.layers.Dense(1)(both))


def measure(options):
    record, example = Record("squared error in validation gaps"), None
    models = {"RotRNN": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        training, validation, new = (
            waves(count, options.steps, generator)
            for count in (options.signals, options.new, options.new)
        )
        sets = [
            _with_weights(signals, generator)
            for signals, _ in (training, validation, new)
        ]
        new_gapped, _, new_missing = sets[2]
        data = sets[0], sets[1], options.epochs
        lines = interpolated(new_gapped, new_missing) - new[0]
        error = np.average(np.square(lines[:, :, 0]), weights=new_missing)
        record.figure("straight lines", error=error)
        for name, build in models.items():
            model = record.train(name, seed, build, train, data, "val_error")
            filled = model.predict(new_gapped, verbose=0)
            squares = np.square(filled - new[0])[:, :, 0]
            record.figure(name, error=np.average(squares, weights=new_missing))
            if example is None:
                row = typical(new[0], filled, new_missing)
                example = shown(new[0][row], filled[row], new_missing[row])
        measure_irregular(record, training, new, options, generator)
    return {**record.result(), "example": example}


def _with_weights(signals, generator):
    gapped, missing = with_gaps(signals, generator)
    return gapped, signals, missing


def measure_irregular(record, training, new, options, generator):
    """The error of frequencies, with the steps' durations and without."""
    sets = [
        (irregular(signals, generator), 10 * frequencies)
        for signals, frequencies in (training, new)
    ]
    for name in ("durations given", "durations unknown"):
        if name == "durations unknown":
            sets = [
                ((signals, np.ones_like(durations)), frequencies)
                for (signals, durations), frequencies in sets
            ]
        history = train_irregular(
            build_irregular_model(), *sets, options.epochs
        )
        mean_error = history.history["val_mae"][-1] / 10
        record.figure(name, frequency_error=mean_error)


def typical(signals, filled, missing):
    """The signal with the median error in its gaps."""
    errors = np.square(filled - signals)[:, :, 0]
    return median_row(np.average(errors, axis=1, weights=missing))


def shown(signal, filled, missing):
    inside = np.where(missing, filled[:, 0], np.nan)
    return {
        "unit": "steps",
        "lines": {
            "signal": signal[:, 0].tolist(),
            "filled": [None if np.isnan(v) else float(v) for v in inside],
        },
    }


def main(arguments=None):
    return run("fill_gaps", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
