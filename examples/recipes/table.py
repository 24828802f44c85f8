"""The recipes: models, data and training as data, and what the papers report.

This module imports no framework, so that the list can be printed at once.
"""

from dataclasses import dataclass
from dataclasses import field

PAPERS = {
    "lssl": "Gu et al. 2021",
    "rotrnn": "Biegun et al. 2024",
    "ldstack": "Kaul 2020",
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
        schedule: `"cosine"`, after a rise, over all steps; or `"error"`, with
            the square of the last round's loss. Defaults to `"cosine"`.
        batch_size: integer. Defaults to 16.
        steps: integer, training steps of a round. Defaults to `None`: those
            of an epoch.
        test_every: integer, the rounds between two tests. Defaults to 1.
        seeds: integers, the runs. Defaults to three.
        figure: what is reported: `"accuracy"` of the test in percent, or
            `"iterations"` until the goal. Defaults to `"accuracy"`.
        goal: float, a training loss below which a run ends. Defaults to
            `None`.
        measurements: names of `recipes.measurements.MEASUREMENTS`, made with
            the trained model. Defaults to none.
        paper, place, published: a key of `PAPERS`, where the figure stands in
            it, and the figure. Defaults to `None`: no figure to compare with.
        note: string, a sentence on why a figure falls short of the paper's,
            shown where it does.
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
    paper: str | None = None
    place: str | None = None
    published: float | None = None
    note: str = ""
    backend: str = "jax"


# Raw speech.

SPEECH = "Raw speech"


def of_speech(title, unit, unit_arguments, **given):
    """Four residual blocks over raw sound, with averages of 4 between them."""
    classifier = {
        "num_layers": 4,
        "units": 48,
        "unit": unit,
        "unit_arguments": unit_arguments,
        "normalization": "batch",
        "pool_size": 4,
    }
    return Recipe(
        **{
            "section": SPEECH,
            "title": title,
            "task": "speech",
            "layers": (("SequenceClassifier", classifier),),
            "learning_rate": 3e-3,
            "rounds": 12,
            **given,
        }
    )


LSSL_SPEECH = {"state_size": 32}
ROTRNN_SPEECH = {"state_size": 96, "theta_max": 3.141592653589793}
LSTM_SPEECH = {"units": 48}
# A step of an LSTM over whole recordings takes seconds: the rounds are shorter,
# and as many as take the time of the LSSL.
LSTM_ROUNDS = {"steps": 15, "rounds": 12}
UNHEARD = {
    "section": "Raw speech of a speaker never heard",
    "task_arguments": {"unheard": True},
}
RATES = ("sampling_rates",)

RECIPES = {
    "speech-lssl": of_speech("LSSL", "lssl", LSSL_SPEECH, measurements=RATES),
    "speech-rotrnn": of_speech("RotRNN", "rotrnn", ROTRNN_SPEECH),
    "speech-lstm": of_speech("LSTM", "lstm", LSTM_SPEECH, **LSTM_ROUNDS),
    "speaker-lssl": of_speech("LSSL", "lssl", LSSL_SPEECH, **UNHEARD),
    "speaker-rotrnn": of_speech("RotRNN", "rotrnn", ROTRNN_SPEECH, **UNHEARD),
}

# Long memory.

ADDITION = "Adding two numbers"


def of_addition(steps, published):
    orthogonal = {
        "units": 128,
        "reflections": 16,
        "reflector_initializer": {
            "class_name": "keras_linrec>ReflectorPairs",
            "config": {"deviation": 0.3},
        },
        "kernel_initializer": {
            "class_name": "RandomNormal",
            "config": {"stddev": 0.01},
        },
    }
    return Recipe(
        section=ADDITION,
        title=f"OrthogonalRNN, {steps} steps",
        task="addition",
        task_arguments={"steps": steps},
        # 1 is the mean of the sums.
        layers=(
            ("OrthogonalRNN", orthogonal),
            ("Dense", {"units": 1, "bias_initializer": "ones"}),
        ),
        optimizer=("Adam", {"global_clipnorm": 0.1}),
        learning_rate=3e-3,
        schedule="error",
        batch_size=50,
        rounds=160,
        steps=100,
        test_every=5,
        figure="iterations",
        # Half the error of always answering 1.
        goal=1 / 12,
        paper="orthogonal",
        place="figure 4",
        published=published,
    )


RECIPES |= {
    "addition-orthogonal-400": of_addition(400, published=5000),
    "addition-orthogonal-800": of_addition(800, published=5000),
}
