"""What the examples share: a backend, options, files, training."""

import importlib.util
import json
import math
import os
import sys
import zipfile
from pathlib import Path

# Keras is imported where it is used: by then a backend has been chosen.

BACKENDS = "The environment variable KERAS_BACKEND chooses between jax, "
BACKENDS += "tensorflow and torch."


def choose_backend():
    """Set KERAS_BACKEND to what is installed, unless the user has chosen."""
    try:
        home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
        chosen = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, LookupError):
        chosen = None
    # Keras itself writes "tensorflow" into that file when it first runs, so
    # that only another name is somebody's choice.
    if chosen not in ("jax", "torch"):
        for backend in ("jax", "tensorflow", "torch"):
            if importlib.util.find_spec(backend):
                os.environ.setdefault("KERAS_BACKEND", backend)


# Options.


def add_numbers(parser, *numbers):
    """Options of one number: name, type, default (or `None`), help."""
    for name, kind, default, text in numbers:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text}{shown}"
        )


def require_whole(parser, options, name, least, most=2**31 - 1):
    """End the program if an option is no number in a range, or `None`."""
    value = getattr(options, name)
    if value is not None and not least <= value <= most:
        parser.error(
            f"argument --{name.replace('_', '-')}: expected a whole "
            f"number from {least} to {most}, received {value}"
        )


def add_models(parser):
    """The options of the unit, and of the LSTM beside it."""
    parser.add_argument(
        "--unit",
        choices=("rotrnn", "lssl", "ldstack"),
        default="rotrnn",
        help="what the layers are made of (default: %(default)s)",
    )
    parser.add_argument(
        "--no-lstm", dest="lstm", action="store_false", help="leave it out"
    )


def add_figure(parser, text):
    """The option of a picture to draw."""
    parser.add_argument(
        "--figure", type=Path, metavar="FILE.png", help=f"where to draw {text}"
    )


def add_output(parser, files):
    """The option of a folder to write to."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("."),
        metavar="DIR",
        help=f"where to write {files} (default: the current directory)",
    )


# Files.


def refuse(path, expected, received):
    """End the program for what is wrong with a file."""
    sys.exit(f"{path}: expected {expected}. Received: {received}")


def require_archive(path, expected):
    """Refuse what is no zip archive, which .npz and .keras files are."""
    if not path.exists():
        refuse(path, expected, "no such file")
    if not zipfile.is_zipfile(path):
        refuse(path, expected, "a damaged file, or one of another kind")


def make_folder(path):
    """Make a folder to write to, if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(path, "a directory to write to", error.strerror)


# Models and training.


def lstm(units, **arguments):
    """An LSTM in the form that a processor runs fastest.

    What PyTorch does there with cuDNN's form takes minutes a step.
    """
    import keras

    if keras.backend.backend() == "torch":
        arguments["use_cudnn"] = False
    return keras.layers.LSTM(units, **arguments)


def widest(parameters, count):
    """The width with the most parameters that are no more than `count`."""
    width = 1
    while parameters(width + 1) <= count:
        width += 1
    return width


def cosine_schedule(peak, steps):
    """A rate that rises for a tenth of the steps and then falls."""
    import keras

    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=peak,
        warmup_steps=math.ceil(steps / 10),
        decay_steps=steps,
    )


def fit_drawn(model, draw, iterations, averaged, callback):
    """Train on batches that `draw()` makes anew for each step.

    An epoch is what is averaged, so that Keras' own mean is the curve.
    """

    def batches():
        while True:
            yield draw()

    model.fit(
        batches(),
        shuffle=False,
        steps_per_epoch=min(averaged, iterations),
        epochs=max(1, iterations // averaged),
        callbacks=[callback],
        verbose=0,
    )
