"""Shared parts of the examples: backend, options, files, models, training."""

import argparse
import importlib.util
import json
import math
import os
import sys
import zipfile
from pathlib import Path

from pictures import save

# Functions import Keras themselves, after a backend has been chosen.

BACKENDS = "The environment variable KERAS_BACKEND chooses between jax, "
BACKENDS += "tensorflow and torch."


def prepare_backend():
    """Choose an installed backend unless the user has; keep freed memory."""
    try:
        home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
        chosen = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, LookupError):
        chosen = None
    # Keras itself writes "tensorflow" into that file on its first run, so only
    # another name is the user's choice.
    if chosen not in ("jax", "torch"):
        for backend in ("jax", "tensorflow", "torch"):
            if importlib.util.find_spec(backend):
                os.environ.setdefault("KERAS_BACKEND", backend)
    # A training step allocates the same buffers again and again.
    if sys.platform.startswith("linux"):
        from keras_linrec import config

        config.keep_freed_memory()


# Options.


# The other whole numbers are of things that there are, and the other real ones
# are divided by, or have no effect at 0.
MAY_BE_ZERO = {"clients", "lstm-iterations", "port", "seed"}
MAY_BE_ZERO |= {"alpha", "beta", "deviation", "dropout", "gamma", "momentum"}


def add_numbers(parser, *numbers):
    """Add numeric options, given as (name, type, default or `None`, help)."""
    for name, kind, default, text in numbers:
        shown = "" if default is None else " (default: %(default)s)"
        may_be_zero = name in MAY_BE_ZERO
        if kind is int:
            kind = whole_number(least=0 if may_be_zero else 1)
        elif kind is float:
            kind = real_number(may_be_zero)
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text}{shown}"
        )


def whole_number(least):
    """The type of an option that is a number from there to the largest."""
    most = 2**31 - 1

    def number(text):
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(_not_between(least, most, value))
        return value

    # As argparse names it where the text is no number.
    number.__name__ = "int"
    return number


def real_number(may_be_zero):
    """The type of an option that is a finite number, and not negative."""

    def number(text):
        value = float(text)
        if math.isfinite(value) and (value > 0 or may_be_zero and value == 0):
            return value
        least = "of at least" if may_be_zero else "above"
        raise argparse.ArgumentTypeError(
            f"expected a number {least} 0, received {text}"
        )

    number.__name__ = "float"
    return number


def require_whole(parser, options, name, least, most=2**31 - 1):
    """Exit unless an option is `None` or a number in a range."""
    value = getattr(options, name)
    if value is not None and not least <= value <= most:
        parser.error(
            f"argument --{name.replace('_', '-')}: "
            + _not_between(least, most, value)
        )


def _not_between(least, most, value):
    return f"expected a whole number from {least} to {most}, received {value}"


def add_models(parser):
    """Add the options for the unit, and for the LSTM to compare with."""
    from keras_linrec.models.units import UNITS

    parser.add_argument(
        "--unit",
        choices=tuple(UNITS),
        default="rotrnn",
        help="the recurrent unit of the layers (default: %(default)s)",
    )
    parser.add_argument(
        "--no-lstm",
        dest="lstm",
        action="store_false",
        help="do not train an LSTM for comparison",
    )


def add_plot(parser, text):
    """Add the option for a plot of `text`, which `save_plot` writes."""
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"plot {text} to a file in a directory (default: no plot)",
    )


def add_output(parser, files):
    """Add the option for the output folder."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("."),
        metavar="DIR",
        help=f"where to write {files} (default: the current directory)",
    )


# Files.


def refuse(path, expected, received):
    """Exit because of a problem with a file."""
    sys.exit(f"{path}: expected {expected}. Received: {received}")


def require_archive(path, expected):
    """Exit unless a file is a zip archive, as .npz and .keras files are."""
    if not path.exists():
        refuse(path, expected, "no such file")
    if not zipfile.is_zipfile(path):
        refuse(path, expected, "a damaged file, or one of another kind")


def make_folder(path):
    """Create a folder unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(path, "a directory to write to", error.strerror)


def require_same_run(folder, wanted):
    """Exit if a folder has the progress of another run.

    Args:
        folder: path of a folder that exists.
        wanted: dictionary of what determines a run, as JSON would hold it.
    """
    from keras_linrec.files import replacing

    path = folder / "run.json"
    if not path.exists():
        with replacing(path) as made:
            Path(made).write_text(json.dumps(wanted))
        return
    begun = json.loads(path.read_text())
    differing = [key for key in wanted if begun.get(key) != wanted[key]]
    if differing:
        refuse(
            folder,
            "the progress of this run, or another --folder",
            f"a run with another {', '.join(differing)}",
        )


def save_plot(figure, options, name):
    """Write a figure of Matplotlib's into the folder given to `add_plot`."""
    make_folder(options.output)
    save(figure, options.output / name)
    print(f"Wrote {name} to {options.output.resolve()}.")


# Models and training.


def lstm(units, **arguments):
    """An LSTM in its fastest form on CPUs.

    With cuDNN's form, a step takes minutes on PyTorch.
    """
    import keras

    if keras.backend.backend() == "torch":
        arguments["use_cudnn"] = False
    return keras.layers.LSTM(units, **arguments)


def draw_dropout(model, seed, epoch):
    """Make dropout depend on a seed and the epoch, so that it can resume."""
    for place, variable in enumerate(model.non_trainable_variables):
        if variable.name == "seed_generator_state":
            variable.assign([(1000 * seed + place) % 2**31, epoch])


def widest(parameters, count):
    """The largest width with at most `count` parameters."""
    width = 1
    while parameters(width + 1) <= count:
        width += 1
    return width


def cosine_schedule(peak, steps):
    """A learning rate that rises for a tenth of the steps, then decays."""
    import keras

    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=peak,
        warmup_steps=math.ceil(steps / 10),
        decay_steps=steps,
    )


def fit_drawn(model, draw, iterations, averaged, callback):
    """Train on batches from `draw()`, a new one in each step.

    An epoch has `averaged` steps, so that the loss that Keras reports is the
    mean over them.
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
