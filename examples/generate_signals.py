"""Learn to generate signals one step at a time: heartbeats.

The guide docs/guides/tasks/generate_signals.md explains the code. Its picture:

    pip install ".[examples,torch]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/generate_signals.py --output docs/images/tasks
"""

import numpy as np
from common import prepare_backend
from task_guides import Record
from task_guides import lstm
from task_guides import lstm_name
from task_guides import run

prepare_backend()

import keras

import keras_linrec
from keras_linrec.models import SequenceClassifier

SIZES = (
    ("epochs", int, 10, "over the signals"),
    ("signals", int, 800, "to train on"),
    ("new", int, 200, "signals to test on"),
    ("steps", int, 500, "of each signal"),
)

LEVELS = 64  # amplitudes between -1 and 2


def heartbeats(count, steps, generator):
    """Signals of pulses whose distance differs from heart to heart."""
    time = np.arange(steps)
    made = np.zeros((count, steps))
    for signal in made:
        period = generator.uniform(40, 80)
        beat = generator.uniform(-period, 0)
        while beat < steps + 20:
            for height, offset, width in (
                (0.2, -12, 4.0),
                (-0.2, -3, 1.2),
                (1.2, 0, 1.5),
                (-0.3, 3, 1.5),
                (0.35, 16, 5.0),
            ):
                distance = (time - beat - offset) / width
                signal += height * np.exp(-(distance**2) / 2)
            beat += period * generator.normal(1, 0.03)
    made += generator.normal(0, 0.03, made.shape)
    return made.astype("float32")[:, :, None]


def to_levels(signals):
    """Amplitudes as whole numbers from 0 to LEVELS - 1."""
    levels = np.round((signals[:, :, 0] + 1) / 3 * (LEVELS - 1))
    return np.clip(levels, 0, LEVELS - 1).astype("int32")


def to_amplitudes(levels):
    return (levels / (LEVELS - 1) * 3 - 1).astype("float32")


def build_model():
    """The probabilities of the levels of the next step, after every step."""
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            SequenceClassifier(
                LEVELS,
                num_layers=2,
                units=32,
                unit="rotrnn",
                unit_arguments={"theta_max": 1.0},
                pooling=None,
            ),
        ]
    )


def train(model, signals, validation, epochs, rate=3e-3):
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy"
    )
    return model.fit(
        signals[:, :-1],
        to_levels(signals)[:, 1:],
        validation_data=(validation[:, :-1], to_levels(validation)[:, 1:]),
        epochs=epochs,
        batch_size=16,
        verbose=2,
    )


def generate(step, begin, steps, generator):
    """Continue signals, (batch, time, 1), by so many steps."""
    states = step.initial_states(batch_size=len(begin))
    for now in np.moveaxis(begin, 1, 0):
        shares, *states = step.predict_on_batch([now, *states])
    made = []
    for _ in range(steps):
        # A level is drawn where the cumulative shares pass a random number.
        drawn = generator.uniform(size=(len(begin), 1))
        levels = (np.cumsum(shares, axis=1) < drawn).sum(axis=1, keepdims=True)
        now = to_amplitudes(np.minimum(levels, LEVELS - 1))
        made.append(now)
        shares, *states = step.predict_on_batch([now, *states])
    return np.stack(made, axis=1)


def build_lstm():
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            lstm(64, return_sequences=True),
            keras.layers.Dense(LEVELS, activation="softmax"),
        ]
    )


def measure(options):
    record, example = (
        Record("loss of the next step, in bits", 1 / np.log(2)),
        None,
    )
    models = {"RotRNN": build_model, lstm_name(): build_lstm}
    for seed in range(options.seeds):
        generator = np.random.default_rng(seed)
        signals, validation, new = (
            heartbeats(count, options.steps, generator)
            for count in (options.signals, options.new, options.new)
        )
        data = signals, validation, options.epochs
        shares = np.bincount(to_levels(signals).ravel(), minlength=LEVELS) + 1
        shares = shares / shares.sum()
        record.figure(
            "shares of the levels", bits=-np.log2(shares)[to_levels(new)].mean()
        )
        for name, build in models.items():
            model = record.train(name, seed, build, train, data, "val_loss")
            loss = model.evaluate(new[:, :-1], to_levels(new)[:, 1:], verbose=0)
            record.figure(name, bits=loss / np.log(2))
            if example is None:
                step = keras_linrec.export_step(model)
                half = options.steps // 2
                made = generate(step, new[:1, :half], half, generator)
                example = shown(new[0, :half, 0], made[0, :, 0])
    return {**record.result(), "example": example}


def shown(begin, made):
    return {
        "unit": "steps",
        "lines": {"a new signal": begin.tolist(), "generated": made.tolist()},
        "begin": {"generated": len(begin)},
    }


def main(arguments=None):
    return run("generate_signals", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
