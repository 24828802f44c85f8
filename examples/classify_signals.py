"""Classify signals of different lengths, and compare with an LSTM.

The guide docs/guides/tasks/classify_signals.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/classify_signals.py --output docs/images/tasks
"""

import numpy as np
from common import prepare_backend
from task_guides import Record
from task_guides import lstm
from task_guides import lstm_name
from task_guides import run

prepare_backend()

import keras

from keras_linrec.models import SequenceClassifier

SIZES = (
    ("epochs", int, 20, "over the signals"),
    ("signals", int, 2000, "to train on"),
    ("new", int, 512, "signals to test on"),
)


def signals(count, generator):
    """Signals of 200 to 1,000 steps, and how the pitch of each moves."""
    classes = generator.integers(4, size=count)
    made = []
    for kind in classes:
        time = np.linspace(0, 1, generator.integers(200, 1001))
        swing = np.sin(2 * np.pi * (2 * time + generator.uniform()))
        path = [0 * time, time, 1 - time, swing][kind]
        pitch = generator.uniform(0.1, 0.2) * (1 + 0.5 * path)
        phase = np.cumsum(pitch) + generator.uniform(0, 2 * np.pi)
        noise = generator.normal(0, 0.5, time.shape)
        made.append((np.sin(phase) + noise).astype("float32")[:, None])
    return made, classes


class Batches(keras.utils.PyDataset):
    """Batches of signals of similar length, padded to multiples of 250."""

    def __init__(self, signals, classes, batch_size=32, **kwargs):
        super().__init__(**kwargs)
        self.signals, self.classes = signals, np.asarray(classes)
        by_length = np.argsort([len(signal) for signal in signals])
        ends = range(batch_size, len(signals), batch_size)
        self.batches = np.split(by_length, ends)
        # Keras on TensorFlow infers a fixed length if the first two batches
        # have the same one: the longest comes second.
        self.batches.insert(1, self.batches.pop())

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        rows = self.batches[index]
        longest = max(len(self.signals[row]) for row in rows)
        padded = np.zeros((len(rows), -(-longest // 250) * 250, 1), "float32")
        for place, row in enumerate(rows):
            padded[place, : len(self.signals[row])] = self.signals[row]
        return padded, self.classes[rows]


def build_model():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            keras.layers.Masking(),  # skips the zeros after a signal
            SequenceClassifier(
                4,
                num_layers=2,
                units=32,
                unit="rotrnn",
                unit_arguments={"theta_max": 0.5},  # radians per step
            ),
        ]
    )


def train(model, training, validation, epochs, rate=3e-3):
    model.compile(
        keras.optimizers.Adam(rate),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model.fit(
        Batches(*training),
        validation_data=Batches(*validation),
        epochs=epochs,
        verbose=2,
    )


def build_lstm():
    """An LSTM of which the mean over time is read, as of the blocks."""
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            keras.layers.Masking(),
            lstm(72, return_sequences=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )


def measure(options):
    record = Record("accuracy on validation signals")
    models = {"RotRNN": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        training = signals(options.signals, generator)
        validation = signals(options.new, generator)
        new = signals(options.new, generator)

        data = training, validation, options.epochs
        for name, build in models.items():
            model = record.train(
                name, seed, build, train, data, "val_accuracy", max
            )
            _, accuracy = model.evaluate(Batches(*new), verbose=0)
            record.figure(name, accuracy=accuracy)
    return record.result()


def main(arguments=None):
    return run("classify_signals", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
