"""What a recipe is, and the papers that recipes refer to."""

import json
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field

PAPERS = {
    "lssl": "Gu et al. 2021",
    "rotrnn": "Biegun et al. 2024",
    "s5": "Smith et al. 2023",
    "orthogonal": "Mhammedi et al. 2017",
    "lipschitz": "Erichson et al. 2021",
}


@dataclass(frozen=True)
class Recipe:
    """One model on one task.

    Attributes:
        section: string, the section of the page of results, whose recipes are
            drawn in one figure.
        title: string, the model, as the page names it.
        task, task_arguments: a name of `recipes.data.TASKS`, and arguments.
        layers: tuple of layers after the inputs, `(name, arguments)` each.
        learning_rate: float, the highest of the schedule.
        rounds: integer. After each round the run can be interrupted.
        optimizer: pair of a name in `keras.optimizers` and arguments.
        groups: dictionary for `ParameterGroups`. Defaults to none.
        schedule: `"cosine"`, after a rise, over all steps; `"error"`, with the
            square of the last round's loss; or `"constant"`. Defaults to
            `"cosine"`.
        batch_size: integer. Defaults to 16.
        steps: integer, training steps of a round. Defaults to `None`: those
            of an epoch.
        test_every: integer, the rounds between two tests. Defaults to 1.
        seeds: integers, the runs. Defaults to three.
        figure: what is reported: `"accuracy"` of the test in percent,
            `"iterations"` until the goal, `"bits"` of a byte of the test, or
            the `"growth"` of what is watched, the highest value over the
            lowest. Defaults to `"accuracy"`.
        goal: float, a loss of what is held out below which a run ends.
            Defaults to `None`.
        measurements: names of `recipes.measurements.MEASUREMENTS`, made with
            the trained model. Defaults to none.
        watched: a name of `recipes.measurements.WATCHED`, measured at each
            test. Defaults to none.
        paper, place, published: a key of `PAPERS`, where the figure stands in
            it, and the figure. Defaults to `None`: no figure to compare with.
        note: string, how the training differs from the paper's, and why the
            figure falls short of the paper's where it does.
        backend: string, where none is asked for. Defaults to `"jax"`.
    """

    section: str
    title: str
    task: str
    layers: tuple
    learning_rate: float
    rounds: int
    task_arguments: dict = field(default_factory=dict)
    optimizer: tuple = ("AdamW", {"weight_decay": 0.01, "clipnorm": 1.0})
    groups: dict = field(default_factory=dict)
    schedule: str = "cosine"
    batch_size: int = 16
    steps: int | None = None
    test_every: int = 1
    seeds: tuple = (0, 1, 2)
    figure: str = "accuracy"
    goal: float | None = None
    measurements: tuple = ()
    watched: str | None = None
    paper: str | None = None
    place: str | None = None
    published: float | None = None
    note: str = ""
    backend: str = "jax"


# What a reader sees, of recipes and of studies, and which runs there are:
# nothing that a run depends on.
WORDS = ("section", "title", "seeds", "paper", "place", "published", "note")
WORDS += ("about", "header", "form", "scales", "axes", "lowest")


def what_trains(recipe):
    """A recipe or a study as JSON would hold it, without its words."""
    kept = {k: v for k, v in asdict(recipe).items() if k not in WORDS}
    return json.loads(json.dumps(kept))


def normal(deviation):
    """A normal initializer, as Keras writes it down."""
    return {"class_name": "RandomNormal", "config": {"stddev": deviation}}


def muon(head):
    """Muon, with AdamW at half the rate for the head and for vectors.

    Args:
        head: string, the name of the layer that gives the outputs.
    """
    arguments = {
        "weight_decay": 0.01,
        "adam_weight_decay": 0.01,
        "adam_lr_ratio": 0.5,
        "global_clipnorm": 1.0,
        "exclude_layers": [head],
    }
    return "Muon", arguments
