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
        schedule: `"cosine"`, after a rise, over all steps; `"error"`, with the
            square of the last round's loss; or `"constant"`. Defaults to
            `"cosine"`.
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
COPYING = "Copying ten symbols"
# Half the error of always answering 1, and a tenth of the entropy of guessing.
ADDITION_GOAL = 1 / 12
COPYING_GOAL = 0.2079


def normal(deviation):
    return {"class_name": "RandomNormal", "config": {"stddev": deviation}}


def of_addition(length, layers, **given):
    return Recipe(
        section=ADDITION,
        task="addition",
        task_arguments={"steps": length},
        layers=layers,
        optimizer=("Adam", {"global_clipnorm": 0.1}),
        learning_rate=3e-3,
        schedule="error",
        batch_size=50,
        figure="iterations",
        goal=ADDITION_GOAL,
        **given,
    )


def orthogonal_addition(length):
    orthogonal = {
        "units": 128,
        "reflections": 16,
        "reflector_initializer": {
            "class_name": "keras_linrec>ReflectorPairs",
            "config": {"deviation": 0.3},
        },
        "kernel_initializer": normal(0.01),
    }
    # 1 is the mean of the sums.
    head = {"units": 1, "bias_initializer": "ones"}
    return of_addition(
        length,
        layers=(("OrthogonalRNN", orthogonal), ("Dense", head)),
        title=f"OrthogonalRNN, {length} steps",
        rounds=160,
        steps=100,
        test_every=5,
        paper="orthogonal",
        place="figure 4",
        published=5000,
    )


def ldstack_addition(length):
    # A linear system cannot multiply a number by its mark: gates do. A bias
    # below zero lets them ignore most unmarked numbers from the start.
    gates = {
        "units": 16,
        "activation": "relu",
        "bias_initializer": {
            "class_name": "Constant",
            "config": {"value": -0.5},
        },
    }
    stack = {
        "units": 1,
        # For each gate, a pair of eigenvalues and one that is fixed at 1.
        "state_size": 48,
        "depth": 2,
        "activation": "relu",
        "eigenvalues": "unit",
        "output_initializer": normal(0.1),
        "feedthrough_initializer": "zeros",
        "bias_initializer": "ones",
        "return_sequences": False,
    }
    return of_addition(
        length,
        layers=(("Dense", gates), ("LDStack", stack)),
        title=f"LDStack, {length} steps",
        rounds=100,
        steps=20,
        test_every=5,
    )


def of_copying(delay, title, layers, **given):
    last_ten = ("Cropping1D", {"cropping": (delay + 10, 0)})
    return Recipe(
        section=COPYING,
        title=f"{title}, a delay of {delay}",
        task="copy_memory",
        task_arguments={"delay": delay},
        layers=(layers[0], last_ten, *layers[1:]),
        # With Adam the first updates destroy the angles, which act 2,000 times.
        optimizer=("Adamax", {}),
        learning_rate=0.01,
        schedule="constant",
        batch_size=256,
        rounds=30,
        steps=10,
        test_every=5,
        figure="iterations",
        goal=COPYING_GOAL,
        **given,
    )


def linear_copying(delay):
    system = {
        "units": 8,
        "state_size": 160,
        "eigenvalues": "unit",
        # Equal logits, so that no symbol has a random advantage.
        "output_initializer": "zeros",
        "feedthrough_initializer": "zeros",
    }
    title = "LinearDynamicalSystem"
    return of_copying(delay, title, (("LinearDynamicalSystem", system),))


LSTM_COPYING = (
    ("lstm", {"units": 64, "return_sequences": True}),
    ("Dense", {"units": 8}),
)

RECIPES |= {
    "addition-orthogonal-400": orthogonal_addition(400),
    "addition-orthogonal-800": orthogonal_addition(800),
    "addition-ldstack-750": ldstack_addition(750),
    "copying-300": linear_copying(300),
    "copying-2000": linear_copying(2000),
    "copying-lstm-300": of_copying(300, "LSTM", LSTM_COPYING),
}

# MNIST, pixel by pixel.

SEQUENTIAL = "MNIST, pixel by pixel"
PERMUTED = "MNIST, pixel by pixel, permuted"
ORDERS = {"pixels": SEQUENTIAL, "permuted": PERMUTED}


def of_pixels(order, **given):
    return Recipe(
        section=ORDERS[order],
        task="pixels",
        task_arguments={"order": order},
        **given,
    )


def small_lssl(order, learning_rate, place, published):
    """The small deep LSSL, with learning rates of their own for A, B and dt."""
    classifier = {
        "num_layers": 6,
        "units": 128,
        "unit": "lssl",
        # A factor of 100 apart, around the 784th part.
        "unit_arguments": {
            "state_size": 128,
            "dt_min": 0.8 / 784,
            "dt_max": 80 / 784,
        },
        "dropout": 0.2,
    }
    return of_pixels(
        order,
        title="LSSL, small",
        layers=(("SequenceClassifier", classifier),),
        optimizer=("Adam", {}),
        learning_rate=learning_rate,
        groups={
            "transition_|input_vector": 1e-4 / learning_rate,
            "log_timescale": 1e-3 / learning_rate,
        },
        batch_size=50,
        # Six epochs, of ten rounds each.
        rounds=60,
        steps=120,
        test_every=10,
        paper="lssl",
        place=place,
        published=published,
        note="six epochs here, 200 in the paper.",
    )


def single(order, title, name, arguments, **given):
    """One layer, and the classes from its last output."""
    head = ("Dense", {"units": 10, "activation": "softmax"})
    return of_pixels(
        order, title=title, layers=((name, arguments), head), **given
    )


def lipschitz(order, beta, published):
    return single(
        order,
        "LipschitzRNN(128)",
        "LipschitzRNN",
        {"units": 128, "beta": beta, "gamma": 1e-3, "step_size": 0.03},
        optimizer=("Adam", {"global_clipnorm": 1.0}),
        learning_rate=3e-3,
        batch_size=128,
        rounds=100,
        test_every=5,
        paper="lipschitz",
        place="table 1",
        published=published,
    )


def orthogonal(order, published):
    arguments = {
        "units": 256,
        "reflections": 32,
        # A transition near the identity sums up its 784 inputs.
        "kernel_initializer": normal(1 / 28),
    }
    return single(
        order,
        "OrthogonalRNN(256)",
        "OrthogonalRNN",
        arguments,
        optimizer=("Adam", {"global_clipnorm": 1.0}),
        learning_rate=1e-3,
        batch_size=50,
        rounds=30,
        test_every=3,
        paper="orthogonal",
        place="table 3",
        published=published,
    )


LDSTACK_PIXELS = {
    "units": 128,
    "state_size": 128,
    "mimo": "general",
    "kernel_initializer": normal(1 / 28),
    "return_sequences": False,
}

RECIPES |= {
    "pixels-lssl": small_lssl("pixels", 4e-3, "figure 2", 99.53),
    "permuted-lssl": small_lssl("permuted", 1e-3, "figure 2", 98.76),
    "pixels-lipschitz": lipschitz("pixels", 0.65, 99.4),
    "permuted-lipschitz": lipschitz("permuted", 0.8, 96.3),
    "pixels-orthogonal": orthogonal("pixels", 97.2),
    "permuted-orthogonal": orthogonal("permuted", None),
    "permuted-ldstack": single(
        "permuted",
        "LDStack(128)",
        "LDStack",
        LDSTACK_PIXELS,
        optimizer=("Adam", {"global_clipnorm": 1.0}),
        learning_rate=3e-3,
        batch_size=64,
        rounds=10,
    ),
}
