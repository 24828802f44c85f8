"""Recipes for sensors, texts and lists, and the norms of states."""

from dataclasses import replace

from recipes.recipe import Recipe
from recipes.recipe import muon

SENSORS = "Sensors: Japanese Vowels"
GAPS_SECTION = f"{SENSORS}, with gaps"
GAPS = {"missing": 0.3, "dropped": 0.3}


def of_sensors(title, layers, **task_arguments):
    return Recipe(
        section=GAPS_SECTION if task_arguments else SENSORS,
        title=title,
        task="vowels",
        task_arguments=task_arguments,
        layers=layers,
        learning_rate=3e-3,
        rounds=60,
        test_every=5,
    )


LSSL_SENSORS = (
    (
        "SequenceClassifier",
        {
            "num_layers": 2,
            "units": 32,
            "unit": "lssl",
            "unit_arguments": {
                "state_size": 16,
                "dt_min": 0.02,
                "dt_max": 0.5,
            },
            "dropout": 0.2,
        },
    ),
)
GRU_SENSORS = (
    ("gru", {"units": 64}),
    ("Dropout", {"rate": 0.2}),
    ("Dense", {"units": 9, "activation": "softmax"}),
)

RECIPES = {
    "sensors-lssl": of_sensors("LSSL", LSSL_SENSORS),
    "sensors-gru": of_sensors("GRU", GRU_SENSORS),
    "gaps-lssl": of_sensors("LSSL", LSSL_SENSORS, **GAPS, time_deltas=True),
    "gaps-gru": of_sensors("GRU", GRU_SENSORS, **GAPS),
}


TEXT = "Text, byte by byte"
# Rows above that are run again, with data held out, move here.
TEXT_HELD_OUT = f"{TEXT}, with a tenth held out"
TEXT_LENGTH = 256


def of_text(title, layers, rounds):
    return Recipe(
        section=TEXT,
        title=title,
        task="text",
        task_arguments={"length": TEXT_LENGTH},
        layers=layers,
        learning_rate=4e-3,
        optimizer=("AdamW", {"weight_decay": 0.01, "global_clipnorm": 1.0}),
        batch_size=32,
        # As many as take about the same time.
        rounds=rounds,
        steps=50,
        test_every=10,
        seeds=(0,),
        figure="bits",
    )


OF_BYTES = ("Dense", {"units": 256, "activation": "softmax"})


def of_blocks_for_text(title, rounds, unit, units, **unit_arguments):
    """Four residual blocks of a unit, about 290,000 weights in all."""
    classifier = {
        "num_layers": 4,
        "units": units,
        "unit": unit,
        "unit_arguments": unit_arguments,
        "dropout": 0.1,
        "pooling": None,
    }
    layers = (
        ("Embedding", {"input_dim": 256, "output_dim": units}),
        ("SequenceClassifier", classifier),
    )
    return of_text(title, layers, rounds)


# As many weights, about 300,000.
LSTM_TEXT = (
    ("Embedding", {"input_dim": 256, "output_dim": 128}),
    ("lstm", {"units": 128, "return_sequences": True}),
    ("Dropout", {"rate": 0.1}),
    ("lstm", {"units": 128, "return_sequences": True}),
    OF_BYTES,
)
TRANSFORMER_TEXT = (
    (
        "transformer",
        {
            "vocabulary": 256,
            "units": 80,
            "num_layers": 3,
            "num_heads": 4,
            "dropout": 0.1,
        },
    ),
    OF_BYTES,
)

RECIPES |= {
    "text-rotrnn": of_blocks_for_text(
        "RotRNN", 60, "rotrnn", 96, state_size=192, num_heads=24
    ),
    "text-min-gru": of_blocks_for_text("MinGRU", 60, "min_gru", 152),
    "text-rglru": of_blocks_for_text("RGLRU", 60, "rglru", 152),
    "text-delta-net": replace(
        of_blocks_for_text(
            "DeltaNet",
            30,
            "delta_net",
            96,
            num_heads=4,
            key_dim=24,
            value_dim=32,
        ),
        section=TEXT_HELD_OUT,
    ),
    "text-mamba2": replace(
        of_blocks_for_text(
            "Mamba2", 30, "mamba2", 96, state_size=16, num_heads=4
        ),
        section=TEXT_HELD_OUT,
    ),
    "text-lstm": of_text("LSTM", LSTM_TEXT, rounds=60),
    "text-transformer": of_text("transformer", TRANSFORMER_TEXT, rounds=15),
}

# Lists of Long Range Arena.

LISTS_SECTION = "ListOps, 500 to 2,000 tokens"
LISTS = {
    "num_layers": 4,
    "units": 32,
    "unit": "rotrnn",
    "unit_arguments": {
        "state_size": 64,
        "num_heads": 16,
        "gamma_max": 0.9995,
        # Small angles, as in the paper for this task.
        "theta_max": 0.031415926535897934,
        "bidirectional": True,
    },
    "pooling": "max",
}

LISTS_RULES = {
    "min_length": 500,
    "max_length": 2000,
    "max_depth": 10,
    "max_arguments": 10,
}
LISTS_EMBEDDING = ("Embedding", {"input_dim": 16, "output_dim": 32})

RECIPES["lists-rotrnn"] = Recipe(
    section=LISTS_SECTION,
    title="RotRNN",
    task="list_operations",
    task_arguments={"train_size": 96000, "test_size": 2000, **LISTS_RULES},
    layers=(
        LISTS_EMBEDDING,
        ("SequenceClassifier", LISTS),
    ),
    # RotRNN needs fewer expressions with it than with AdamW.
    optimizer=muon("head"),
    learning_rate=4e-3,
    batch_size=32,
    # Fourteen epochs.
    rounds=420,
    steps=100,
    test_every=10,
    seeds=(0,),
    paper="rotrnn",
    place="table 1",
    published=61.1,
    note="four layers of 32 features and 64 states in both directions, Muon, "
    "maxima over the steps, and 42,000 training steps here; six layers of 128 "
    "and 256 in one direction, and 80,000 steps in the paper.",
)

# The same model with another unit; a complex state holds two numbers.
LISTS_LRU = {
    **LISTS,
    "unit": "lru",
    "unit_arguments": {"state_size": 32, "r_min": 0.5, "r_max": 0.9995},
}
RECIPES["lists-lru"] = replace(
    RECIPES["lists-rotrnn"],
    title="LRU",
    layers=(LISTS_EMBEDDING, ("SequenceClassifier", LISTS_LRU)),
    published=57.9,
    note="the sizes and the training of RotRNN above, in one direction.",
)

REVIEWS = "Film reviews, byte by byte"
REVIEWS_CLASSIFIER = {
    "num_layers": 4,
    "units": 64,
    "unit": "rotrnn",
    "unit_arguments": {
        "state_size": 128,
        "num_heads": 32,
        # As in the paper for this task.
        "gamma_max": 0.8,
        "theta_max": 0.31415926535897934,
    },
    "dropout": 0.1,
}
RECIPES["reviews-rotrnn"] = Recipe(
    section=REVIEWS,
    title="RotRNN",
    task="film_reviews",
    task_arguments={"length": 4096},
    layers=(
        ("Embedding", {"input_dim": 256, "output_dim": 64}),
        ("SequenceClassifier", REVIEWS_CLASSIFIER),
    ),
    optimizer=muon("head"),
    learning_rate=3e-3,
    batch_size=32,
    rounds=80,
    steps=70,
    test_every=8,
    seeds=(0,),
    paper="rotrnn",
    place="table 1",
    published=89.6,
    note="four layers of 64 features and 128 states, and 5,600 training steps "
    "with Muon here; 256, 192 and 50,000 in the paper.",
)

AHEAD = "Characters of a text, some steps ahead"


def of_characters(title, ahead, name, arguments, **given):
    """One layer of about 80,000 weights between bytes and logits."""
    embedding = ("Embedding", {"input_dim": 256, "output_dim": 64})
    unit = (name, {**arguments, "return_sequences": True})
    return replace(
        of_text(title, (embedding, unit, OF_BYTES), rounds=40),
        section=AHEAD,
        title=f"{title}, {ahead} ahead",
        task_arguments={"length": 150, "ahead": ahead},
        learning_rate=3e-3,
        **given,
    )


CHARACTERS = {
    "orthogonal": (
        "OrthogonalRNN",
        "OrthogonalRNN",
        {"units": 192, "reflections": 192},
    ),
    "lipschitz": (
        "LipschitzRNN",
        "LipschitzRNN",
        {"units": 128, "step_size": 0.5},
    ),
    "lstm": ("LSTM", "lstm", {"units": 96}),
}
RECIPES |= {
    f"characters-{key}-{ahead}": of_characters(title, ahead, name, arguments)
    for ahead in (1, 5)
    for key, (title, name, arguments) in CHARACTERS.items()
}

NORMS = "Norms of states in training"


def of_norms(title, unit, state_size):
    classifier = {
        "num_layers": 3,
        "units": 32,
        "unit": unit,
        "unit_arguments": {"state_size": state_size},
        "normalization": "batch",
    }
    return Recipe(
        section=NORMS,
        title=title,
        task="list_operations",
        task_arguments={"train_size": 38400, "test_size": 200, **LISTS_RULES},
        layers=(LISTS_EMBEDDING, ("SequenceClassifier", classifier)),
        learning_rate=4e-3,
        batch_size=32,
        rounds=20,
        steps=60,
        test_every=2,
        figure="growth",
        watched="norms",
    )


RECIPES |= {
    "norms-rotrnn": of_norms("RotRNN", "rotrnn", 64),
    # Complex states: half as many hold as many numbers.
    "norms-lru": of_norms("LRU", "lru", 32),
}

ABOUT = {
    SENSORS: "Twelve channels of 640 utterances, 7 to 29 steps, by nine "
    "speakers, whom the model tells apart: 270 for training, 370 for the test "
    "(Kudo et al. 1999).",
    GAPS_SECTION: "The same utterances, of which 30% of the steps and 30% of "
    "the values in the others are missing, in training and in the test. Both "
    "models are told which values are missing, and how long each step lasts: "
    "the GRU as features, the LSSL also as `time_deltas`.",
    TEXT: f"Tiny Shakespeare, a megabyte, in rows of {TEXT_LENGTH} bytes, each "
    "read without what came before it. The figure is bits per byte on the last "
    "tenth, which is the test. The models have about the same number of "
    "weights, and train for about the same time on one processor: 750 steps of "
    "the transformer, and 3,000 of the others. They share one learning rate, "
    "which was not tuned for each.",
    TEXT_HELD_OUT: "The same text and learning rate, and about the same time. "
    "The tenth before the test chooses the round: the models train on less, "
    "and on nothing next to the test, so their figures do not compare with "
    "those above.",
    REVIEWS: "The task Text of Long Range Arena: the first 4,096 bytes of "
    "50,000 reviews (Maas et al. 2011), for a film or against it, half of them "
    "for training.",
    AHEAD: "Tiny Shakespeare in rows of 150 bytes: the byte after each, or the "
    "fifth after it. Mhammedi et al. 2017 and Erichson et al. 2021 predict "
    "characters of the Penn Treebank so. The figure is bits per byte on the "
    "last tenth.",
    LISTS_SECTION: "The values of nested lists of digits, drawn by the rules "
    "of Long Range Arena and not taken from its files: 96,000 for training, "
    "2,000 for the test, whose standard error is 1.1 points.",
    NORMS: "Figure 3 of Biegun et al. 2024, with three layers of 32 features "
    "instead of six of 128: deep models learn ListOps, and the mean norm of "
    "each layer's state is measured on the same 64 expressions every 120 steps "
    "of the 1,200. The figure is the ratio of its highest to its lowest "
    "value, in the layer with the largest ratio. RotRNN's normalisation holds "
    "throughout the training, but is exact only if the inputs of different "
    "steps are independent, which tokens are not. LRU is normalised at the "
    "start only, and its states grow more. In the paper, the norms of RotRNN "
    "are nearly constant.",
}
