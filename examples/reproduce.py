"""Train a model of the papers by its recipe, or test the model that was kept.

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/reproduce.py --list
    python examples/reproduce.py speech-lssl --data recordings

Each recipe is an entry of a table, `recipes/table.py`: a model, its data, its
training, and the figure that its paper reports. The command trains with the
recipe's seeds, one after another, prints a line after every round, and writes
`NAME.json` (the history, the time, the machine, the versions), `NAME.keras`,
the model of the first seed, and a plot into `docs/results`.

A run that was stopped or killed goes on when the command is given again, to the
same numbers as if it had not been: the examples of a training step follow from
the seed and the number of the step. `--minutes 60` stops after the round in
which an hour has passed.

A tenth of the training data is held out, the same in every run, and chooses the
round whose weights are tested and kept. The test is read once, at the end.

    python examples/reproduce.py --verify speech-lssl --data recordings

measures the accuracy or the loss of the model that was kept on the test, under
any backend, and fails where it differs from the recorded one by more than a
tenth of a point, or of a percent of the loss. It does not measure again what a
recipe measures beside the test, such as the norms of states.

    python examples/reproduce.py gradients

measures a table of `recipes/studies.py`, which trains no model that is kept.

    python examples/reproduce.py --page

writes `docs/results.md`, and the pages and plots in `docs/results`, from all
JSON files.

What `--data` takes:

- `pixels-*`, `permuted-*`, `robust-*`: MNIST as Keras' mnist.npz, which
  `keras.datasets.mnist.load_data()` stores in ~/.keras/datasets;
- `cifar-*`, `image-*`, `padded-*`: CIFAR-10 in a NumPy file with Keras' arrays
  (`x_train`, `y_train`, `x_test`, `y_test`), or a folder with
  cifar10_train_jpeg.npz and cifar10_test_jpeg.npz, whose `bytes` are JPEG files
  that end at `ends`, with `labels`. JPEG is slightly lossy;
- `reviews-*`: the folder aclImdb of the Large Movie Review Dataset, or a NumPy
  file with `train_bytes`, `train_ends`, `train_labels` and the same of `test`;
- `speech-*`, `speaker-*`, `parts-*`: the folder `recordings` of the Free Spoken
  Digit Dataset (github.com/Jakobovski/free-spoken-digit-dataset, CC BY-SA 4.0),
  or its recordings one after another in the array `samples` of a NumPy file,
  with `lengths`, `labels`, `speakers`, `takes` and `rate`;
- `sensors-*`, `gaps-*`: nothing where the package aeon is installed
  (`pip install --no-deps aeon`), which ships Japanese Vowels, or its folder;
- `text-*`, `characters-*`: Tiny Shakespeare as a text file, the input.txt of
  github.com/karpathy/char-rnn in data/tinyshakespeare;
- the others draw their data themselves, `lists-*` and `norms-*` with KerasHub.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from common import BACKENDS
from common import add_numbers
from common import make_folder
from common import prepare_backend
from common import whole_number
from recipes import figures
from recipes import page
from recipes.studies import STUDIES
from recipes.studies import measure
from recipes.table import RECIPES

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def main(arguments=None):
    options = parse(arguments)
    if options.list:
        print(figures.listing(options.output))
        return
    if options.page:
        page.write(options.output)
        return
    make_folder(options.output)
    make_folder(options.folder)
    for name in options.names:
        recipe = RECIPES.get(name) or STUDIES[name]
        choose_backend(options.backend, recipe.backend)
        if options.verify:
            verify(name, options)
        elif name in STUDIES:
            measure_again(name, options)
        else:
            reproduce(name, options)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=BACKENDS
    )
    parser.add_argument(
        "names",
        nargs="*",
        # argparse compares the empty list too, when no name is given.
        choices=[*RECIPES, *STUDIES, []],
        metavar="NAME",
        help="one or more recipes, see --list",
    )
    for name, text in (
        ("list", "print the recipes, the papers' figures and those here"),
        ("verify", "test the models that were kept, instead of training"),
        ("page", "make the pages of results and their plots"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="the file or folder of data"
    )
    parser.add_argument(
        "--backend",
        choices=("jax", "tensorflow", "torch"),
        help="where KERAS_BACKEND is not set (default: the recipe's)",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number(0),
        nargs="+",
        help="the runs (default: the recipe's)",
    )
    add_numbers(
        parser,
        ("minutes", float, None, "stop after the round in which they end"),
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(".cache") / "reproduce",
        metavar="DIR",
        help="what is needed to go on (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where results are written (default: docs/results)",
    )
    options = parser.parse_args(arguments)
    if not options.names and not (options.list or options.page):
        parser.error("expected the NAME of a recipe, --list or --page")
    without_model = [name for name in options.names if name in STUDIES]
    if options.verify and without_model:
        parser.error(
            "--verify: expected recipes that keep a model. Received: "
            f"{', '.join(without_model)}"
        )
    return options


def choose_backend(asked_for, usual):
    """Let the environment decide, then the command line, then the recipe.

    A recipe may run on another backend where its own is not installed.
    """
    if asked_for and not importlib.util.find_spec(asked_for):
        sys.exit(f"--backend: {asked_for} is not installed")
    name = asked_for or usual
    if importlib.util.find_spec(name):
        os.environ.setdefault("KERAS_BACKEND", name)
    prepare_backend()


def reproduce(name, options):
    # Keras is imported after its backend has been chosen.
    from recipes import training

    recipe = RECIPES[name]
    for seed in options.seeds or recipe.seeds:
        if not training.train(name, recipe, seed, options):
            print(f"{name}, seed {seed}: the same command goes on.")
            return
    page.draw(recipe.section, options.output)


def measure_again(name, options):
    study = STUDIES[name]
    for seed in options.seeds or study.seeds:
        measure(name, study, seed, options.output)


def verify(name, options):
    from recipes import verification

    if not verification.verify(name, RECIPES[name], options):
        sys.exit(1)


if __name__ == "__main__":
    main()
