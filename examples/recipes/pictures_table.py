"""Recipes for CIFAR-10: pixel by pixel, and rows padded with noise."""

from recipes.recipe import Recipe

COLOUR = "CIFAR-10, pixel by pixel"
GREY = "CIFAR-10, pixel by pixel, grey"
PADDED = "CIFAR-10 in rows, padded with noise"
EPOCHS = 10
LOSSY = "From pictures as JPEG files, which are slightly lossy, or Keras' own."


def of_pictures(section, title, unit, unit_arguments, **given):
    """A deep model, with ten rounds an epoch."""
    form = "colour" if section == COLOUR else "grey"
    classifier = {
        "num_layers": 6,
        "units": 128,
        "unit": unit,
        "unit_arguments": unit_arguments,
        "normalization": "batch",
        "dropout": 0.1,
    }
    return Recipe(
        **{
            "section": section,
            "title": title,
            "task": "pictures",
            "task_arguments": {"form": form},
            "layers": (("SequenceClassifier", classifier),),
            "learning_rate": 4e-3,
            "batch_size": 50,
            "rounds": 10 * EPOCHS,
            "steps": 90,
            "test_every": 10,
            "seeds": (0,),
            **given,
        }
    )


LSSL_PICTURES = {
    "state_size": 128,
    # A factor of 100 apart, around the 1,024th part.
    "dt_min": 0.1 / 1024,
    "dt_max": 10 / 1024,
}
# Small rates of their own, as in the paper.
LSSL_GROUPS = {
    "transition_|input_vector": 1e-4 / 4e-3,
    "log_timescale": 1e-3 / 4e-3,
}
ROTRNN_PICTURES = {
    "state_size": 256,
    "num_heads": 32,
    # As in the paper for this task.
    "gamma_min": 0.99,
    "gamma_max": 0.999,
}
S5_PICTURES = {"state_size": 64, "bidirectional": True}
HERE = f"{EPOCHS} epochs with batches of 50 here"

RECIPES = {
    "cifar-lssl": of_pictures(
        COLOUR,
        "LSSL, small",
        "lssl",
        LSSL_PICTURES,
        groups=LSSL_GROUPS,
        paper="lssl",
        place="figure 2",
        published=84.65,
        note=f"{HERE}, 200 in the paper.",
    ),
    "image-rotrnn": of_pictures(
        GREY,
        "RotRNN",
        "rotrnn",
        ROTRNN_PICTURES,
        paper="rotrnn",
        place="table 1",
        published=85.9,
        note=f"128 features, 256 states and {HERE}; 512, 384 and 250,000 "
        "training steps in the paper.",
    ),
    "image-s5": of_pictures(
        GREY,
        "S5",
        "s5",
        S5_PICTURES,
        groups={"transition_|log_timescale|input_": 0.25},
    ),
    "image-lssl": of_pictures(
        GREY, "LSSL, small", "lssl", LSSL_PICTURES, groups=LSSL_GROUPS
    ),
    "padded-lipschitz": Recipe(
        section=PADDED,
        title="LipschitzRNN(128)",
        task="pictures",
        task_arguments={"form": "rows", "padded_to": 1000},
        layers=(
            (
                "LipschitzRNN",
                {
                    "units": 128,
                    "beta": 0.75,
                    "gamma": 1e-3,
                    "step_size": 0.03,
                },
            ),
            ("Dense", {"units": 10, "activation": "softmax"}),
        ),
        optimizer=("Adam", {"global_clipnorm": 1.0}),
        learning_rate=3e-3,
        batch_size=128,
        rounds=30,
        test_every=5,
        seeds=(0,),
        paper="lipschitz",
        place="table 5",
        published=59.0,
        note="30 epochs, a rate that rises and falls, and clipped gradients "
        "here; 100 epochs, a rate that falls once, and none clipped in the "
        "paper.",
    ),
}

ABOUT = {
    COLOUR: f"1,024 steps of three numbers. {LOSSY}",
    GREY: f"The task Image of Long Range Arena: 1,024 steps of one number. "
    f"{LOSSY}",
    PADDED: "32 steps of a row each, then 968 of normal noise (Chang et al. "
    f"2019). {LOSSY}",
}
