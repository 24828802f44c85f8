"""Classify handwritten digits that are read one pixel at a time.

An image becomes a sequence with one pixel per time step, which a stack of an
LSSL and a RotRNN layer reads:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/sequential_digits.py

This takes about a minute and downloads nothing: scikit-learn includes the 8x8
digits. It writes `model.keras` and `learning_curve.png`. The saved model runs
under every backend:

    KERAS_BACKEND=torch python examples/sequential_digits.py --load model.keras

MNIST's 28x28 images have 784 steps. `keras.datasets.mnist.load_data()` stores
the file in ~/.keras/datasets:

    python examples/sequential_digits.py --data ~/.keras/datasets/mnist.npz

`--model small` is the deep LSSL of Gu et al. 2021, with the hyperparameters of
its table 9. The paper trains it for 200 epochs; `--minutes` trains for a given
time:

    python examples/sequential_digits.py --data ~/.keras/datasets/mnist.npz \
        --model small --minutes 120 --test-size 1000
"""

import argparse
import csv
import math
import sys
import time
from pathlib import Path

from common import BACKENDS
from common import add_numbers
from common import add_output
from common import cosine_schedule
from common import make_folder
from common import prepare_backend
from common import refuse
from common import require_archive
from digits import TEST_BATCH_SIZE
from digits import add_data
from digits import as_sequences
from digits import compile_model
from digits import first
from digits import read
from digits import scaled_pixels
from pictures import new_figure
from pictures import save

prepare_backend()

import keras

from keras_linrec.layers import LSSL
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier

MODEL_FILE = "model.keras"
PLOT_FILE = "learning_curve.png"
TABLE_FILE = "learning_curve.csv"
TITLES = {"stack": "an LSSL and a RotRNN in one model", "small": "deep LSSL"}
EVALUATIONS = 20
# The resolution of the learning-rate schedule of `--minutes`.
SCHEDULE_STEPS = 100_000


def main(arguments=None):
    options = parse(arguments)
    *parts, classes = read(options.data)
    train, test = (
        (as_sequences(images, options.permute), labels)
        for images, labels in parts
    )
    if options.load:
        model = load(options.load, test[0].shape[1], classes)
    else:
        model = train_and_save(options, train, test, classes)
    _, accuracy = model.evaluate(*test, batch_size=TEST_BATCH_SIZE, verbose=0)
    print(f"Test accuracy: {accuracy:.2%}")


def parse(arguments):
    parser = argparse.ArgumentParser(
        description="Classify handwritten digits that are read one pixel at "
        "a time.",
        epilog=BACKENDS,
    )
    add_data(parser)
    parser.add_argument(
        "--permute",
        action="store_true",
        help="shuffle the pixels, in the same way in every image",
    )
    parser.add_argument(
        "--model",
        choices=("stack", "small"),
        default="stack",
        help="an LSSL and a RotRNN layer, or the small deep LSSL of Gu et "
        "al. 2021 (default: %(default)s)",
    )
    add_numbers(
        parser,
        ("epochs", int, None, "training epochs (60; --data: 10)"),
        ("minutes", float, None, f"train for a time; write {TABLE_FILE}"),
        ("batch-size", int, None, "images per training step (32; small: 50)"),
        ("train-size", int, None, "number of training images (all)"),
        ("test-size", int, None, "number of test images in training (all)"),
        ("seed", int, 0, "seed of weights, dropout and order of the images"),
    )
    add_output(parser, f"{MODEL_FILE} and {PLOT_FILE}")
    parser.add_argument(
        "--load",
        type=Path,
        metavar="FILE.keras",
        help="test this saved model instead of training; use the same --data "
        "and --permute as in training",
    )
    options = parser.parse_args(arguments)
    if options.epochs is None:
        options.epochs = 10 if options.data else 60
    if options.batch_size is None:
        options.batch_size = 50 if options.model == "small" else 32
    return options


def build_model(pixels, classes):
    """A classifier of sequences of pixels.

    Args:
        pixels: array (images, steps, 1), which determines the length of the
            sequences, and the mean and variance to scale them by.
        classes: integer, the number of classes.
    """
    steps = pixels.shape[1]
    return keras.Sequential(
        [
            *scaled_pixels(pixels),
            keras.layers.Dense(64),
            keras.layers.LayerNormalization(),
            # Timescales from the whole sequence down to a twentieth of it.
            LSSL(64, state_size=16, dt_min=1 / steps, dt_max=20 / steps),
            keras.layers.LayerNormalization(),
            # Adjacent pixels are similar, so rotations start out slow.
            RotRNN(
                64,
                state_size=64,
                num_heads=8,
                theta_max=math.pi / 10,
                dropout=0.1,
            ),
            keras.layers.Activation("gelu"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def build_small_model(pixels, classes):
    """The small deep LSSL (Gu et al. 2021, appendix B, table 9)."""
    steps = pixels.shape[1]
    return keras.Sequential(
        [
            *scaled_pixels(pixels),
            # dt_min and dt_max differ by a factor of 100 and enclose 1 / steps.
            SequenceClassifier.from_size(
                "small",
                classes,
                dropout=0.2,
                unit_arguments={"dt_min": 0.8 / steps, "dt_max": 80 / steps},
            ),
        ]
    )


def train_and_save(options, train, test, classes):
    train = first(options.train_size, train, "--train-size", "training")
    test = first(options.test_size, test, "--test-size", "test")
    make_folder(options.output)
    keras.utils.set_random_seed(options.seed)
    pixels = train[0]
    build = build_small_model if options.model == "small" else build_model
    model = build(pixels, classes)
    backend = keras.backend.backend()
    print(
        f"Training on {len(pixels)} images, testing on {len(test[0])}: "
        f"{pixels.shape[1]} time steps each, backend {backend}."
    )
    begin = time.perf_counter()
    fit = fit_minutes if options.minutes else fit_epochs
    written = fit(options, model, train, test)
    seconds = time.perf_counter() - begin
    print(f"Trained for {seconds:.0f} seconds, backend {backend}.")
    print(f"Wrote {written} to {options.output.resolve()}.")
    return model


def fit_epochs(options, model, train, test):
    """Train for `options.epochs`; return the names of the files written."""
    # Save after every epoch, in case the run is interrupted.
    callbacks = [keras.callbacks.ModelCheckpoint(options.output / MODEL_FILE)]
    if options.model == "small":
        rate = peak_rate(options)
        # The paper monitors a validation set; here it is the training loss, so
        # that test images do not influence training.
        callbacks.append(
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.2, patience=10)
        )
    else:
        steps = math.ceil(len(train[0]) / options.batch_size)
        rate = cosine_schedule(peak_rate(options), options.epochs * steps)
    compile_model(model, make_optimizer(options, rate))
    history = model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test,
        validation_batch_size=TEST_BATCH_SIZE,
        callbacks=callbacks,
        verbose=1 if sys.stdout.isatty() else 2,
    ).history
    epochs = range(1, len(history["loss"]) + 1)
    plot("epoch", epochs, history, options)
    return f"{MODEL_FILE} and {PLOT_FILE}"


def fit_minutes(options, model, train, test):
    """Train for `options.minutes`; return the names of the files written."""
    compile_model(model, make_optimizer(options, peak_rate(options)))
    stopwatch = Stopwatch(options, len(train[0]), test)
    model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=2**31,
        callbacks=[stopwatch],
        verbose=0,
    )
    history = stopwatch.history
    minutes = [seconds / 60 for seconds in history["seconds"]]
    plot("minutes", minutes, history, options)
    return f"{MODEL_FILE}, {TABLE_FILE} and {PLOT_FILE}"


class Stopwatch(keras.callbacks.Callback):
    """Train for a given time, with a cosine schedule over that time.

    In regular intervals, `EVALUATIONS` times in all, the callback tests and
    saves the model and adds a line to `TABLE_FILE`. There, `loss` and
    `accuracy` are averages over the training images since the previous line
    or the beginning of the epoch; `val_loss` and `val_accuracy` are for the
    test images.
    """

    def __init__(self, options, train_size, test):
        super().__init__()
        self.options = options
        self.train_size = train_size
        self.test = test
        self.schedule = cosine_schedule(peak_rate(options), SCHEDULE_STEPS)
        self.images = 0
        self.evaluations = 0
        self.history = {}

    def on_train_begin(self, logs=None):
        self.begin = time.perf_counter()

    def seconds(self):
        return time.perf_counter() - self.begin

    def share(self):
        """The share of the time that has passed, from 0 to 1."""
        return min(self.seconds() / (60 * self.options.minutes), 1.0)

    def on_train_batch_begin(self, batch, logs=None):
        # The decay takes SCHEDULE_STEPS, the rise before it a tenth of that.
        rate = self.schedule(self.share() * 1.1 * SCHEDULE_STEPS)
        self.model.optimizer.learning_rate = float(rate)

    def on_train_batch_end(self, batch, logs=None):
        size = self.options.batch_size
        self.images += min(size, self.train_size - batch * size)
        share = self.share()
        if int(share * EVALUATIONS) > self.evaluations:
            self.evaluations = int(share * EVALUATIONS)
            self.evaluate(logs)
        if share >= 1:
            self.model.stop_training = True

    def evaluate(self, logs):
        row = {
            "seconds": round(self.seconds(), 1),
            "images": self.images,
            "loss": float(logs["loss"]),
            "accuracy": float(logs["accuracy"]),
        }
        model = self.model
        test = model.evaluate(
            *self.test,
            batch_size=TEST_BATCH_SIZE,
            verbose=0,
            return_dict=True,
        )
        # Otherwise training would continue to average over the test images.
        model.reset_metrics()
        row.update(val_loss=test["loss"], val_accuracy=test["accuracy"])
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)
        print(", ".join(f"{n} {v:.6g}" for n, v in row.items()), flush=True)

        model.save(self.options.output / MODEL_FILE)
        table = self.options.output / TABLE_FILE
        with open(table, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.history)
            writer.writerows(zip(*self.history.values()))


def peak_rate(options):
    """The peak learning rate; for the small model, that of the paper."""
    if options.model == "small" and options.permute:
        return 1e-3
    return 4e-3


def make_optimizer(options, rate):
    if options.model == "small":
        return keras.optimizers.Adam(rate)
    return keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)


def plot(unit, positions, history, options):
    """Plot loss and accuracy against epochs or time."""
    figure, panels = new_figure(2, height=2.6, sharex=True)
    for axes, name in zip(panels, ("loss", "accuracy")):
        # With markers, a run of a single epoch is visible.
        axes.plot(positions, history[name], ".-", label="train")
        axes.plot(positions, history[f"val_{name}"], ".-", label="test")
        axes.set_ylabel(name)
        axes.legend()
    panels[0].set_title(TITLES[options.model])
    panels[1].set_xlabel(unit)
    save(figure, options.output / PLOT_FILE)


def load(path, steps, classes):
    """Load a model, saved under any backend, that fits the data."""
    expected = "a model that this script saved"
    require_archive(path, expected)
    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # A damaged file fails in many ways.
        reason = str(error).strip().partition("\n")[0]
        refuse(path, expected, f"{type(error).__name__}: {reason}")
    received = [
        getattr(model, name, "an unknown shape")
        for name in ("input_shape", "output_shape")
    ]
    if received != [(None, steps, 1), (None, classes)]:
        refuse(
            path,
            f"a model from (None, {steps}, 1), the sequences of this data, "
            f"to (None, {classes}), its classes",
            f"one from {received[0]} to {received[1]}",
        )
    compile_model(model)
    return model


if __name__ == "__main__":
    main()
