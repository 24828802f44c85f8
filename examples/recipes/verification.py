"""The test figure of a model that was kept, measured again."""

import keras
from common import require_archive
from recipes import record
from recipes.data import TASKS
from recipes.figures import is_tested
from recipes.figures import tested
from recipes.training import compile_model
from recipes.training import test

from keras_linrec.saving import load_model

# The figures that follow from the loss of the test.
OF_LOSSES = ("bits", "iterations")
# A tenth of a point of accuracy; the same share of a loss.
TOLERANCE = 1e-3


def verify(name, recipe, options):
    """Whether the kept model has the figure that was recorded."""
    seed = recipe.seeds[0]
    task = TASKS[recipe.task](options, seed, **recipe.task_arguments)
    path = options.output / f"{name}.keras"
    require_archive(path, "the model that a run of the recipe kept")
    model = load_model(path, compile=False)
    compile_model(model, task)
    measured = test(model, task.tests())
    runs = record.read(options.output / f"{name}.json")["runs"]
    (run,) = (run for run in runs if run["seed"] == seed)
    key = "loss" if recipe.figure in OF_LOSSES else "accuracy"
    if not is_tested(run):
        print(f"{name}: in training, and not tested yet.")
        return False
    recorded = tested(run, key)
    allowed = TOLERANCE * (1 if key == "accuracy" else recorded)
    agrees = abs(measured[key] - recorded) <= allowed
    print(
        f"{name}, backend {keras.backend.backend()}: test {key} "
        f"{measured[key]:.4f}, recorded {recorded:.4f} on {run['backend']}: "
        f"{'the same' if agrees else 'another'} figure."
    )
    return agrees
