"""Recipes for long memory: adding and copying."""

from dataclasses import replace

from recipes.recipe import Recipe
from recipes.recipe import normal

ADDITION = "Adding two numbers"
COPYING = "Copying ten symbols"
GROUPS = "Products of permutations"
DISTANT = "Two pulses, 8,000 steps apart"
# Half the error of always answering 1, and a tenth of the entropy of guessing.
ADDITION_GOAL = 1 / 12
COPYING_GOAL = 0.2079


def of_addition(length, layers, **given):
    return Recipe(
        section=ADDITION,
        task="addition",
        task_arguments={"steps": length},
        layers=layers,
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
        # With Adam's usual 0.999 the task of 800 steps took 5,633 iterations
        # instead of 3,567, the means of three seeds, by the loss of training.
        optimizer=("Adam", {"beta_2": 0.99, "global_clipnorm": 0.1}),
        rounds=160,
        steps=100,
        paper="orthogonal",
        place="figure 4",
        published=5000,
        note="the paper counts until the error is below that of always "
        "answering 1, not below half of it. Its learning rate is 0.01 "
        "throughout; here it falls with the square of the error, from 0.003, "
        "and gradients are clipped.",
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
        title=f"Dense (ReLU), then LDStack, {length} steps",
        optimizer=("Adam", {"global_clipnorm": 0.1}),
        rounds=100,
        steps=20,
    )


def of_copying(delay, title, layers):
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
        figure="iterations",
        goal=COPYING_GOAL,
    )


def baseline_addition(name, title, length=400):
    """Another unit, trained as OrthogonalRNN is."""
    head = {"units": 1, "bias_initializer": "ones"}
    return replace(
        orthogonal_addition(length),
        layers=((name, {"units": 128}), ("Dense", head)),
        title=f"{title}, {length} steps",
        paper=None,
        place=None,
        published=None,
        note="",
    )


def fewer_reflections(count, length=400):
    recipe = orthogonal_addition(length)
    (name, arguments), head = recipe.layers
    return replace(
        recipe,
        layers=((name, {**arguments, "reflections": count}), head),
        title=f"OrthogonalRNN, {count} reflections, {length} steps",
        paper=None,
        place=None,
        published=None,
        note="",
    )


def orthogonal_copying(delay, title, **arguments):
    """OrthogonalRNN with logits, as in section 5.5 of its paper."""
    unit = {
        "units": 128,
        "reflections": 128,
        "return_sequences": True,
        **arguments,
    }
    layers = (("OrthogonalRNN", unit), ("Dense", {"units": 8}))
    return replace(
        of_copying(delay, f"OrthogonalRNN, {title}", layers),
        optimizer=("Adam", {"global_clipnorm": 1.0}),
        learning_rate=1e-3,
        batch_size=32,
        rounds=40,
        steps=50,
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


def of_distant_pulses(title, unit, unit_arguments, **given):
    """Two residual blocks, and the last step of their outputs."""
    classifier = {
        "num_layers": 2,
        "units": 32,
        "unit": unit,
        "unit_arguments": unit_arguments,
        # The layer norm of a single feature makes noise as large as pulses.
        "normalization": "batch",
        "pooling": "last",
    }
    return Recipe(
        section=DISTANT,
        title=title,
        task="distant_pulses",
        task_arguments={"steps": 10_000, "distance": 8_000},
        layers=(("SequenceClassifier", classifier),),
        learning_rate=3e-3,
        rounds=8,
        steps=25,
        test_every=4,
        seeds=(0,),
        **given,
    )


def of_group_words(degree, title, *unit, **given):
    """One layer of a unit between an embedding and logits."""
    elements = {3: 6, 5: 120}[degree]
    embedding = {"input_dim": elements, "output_dim": 64}
    return Recipe(
        section=GROUPS,
        title=f"{title}, {degree} objects",
        task="group_words",
        task_arguments={"degree": degree, "steps": 64},
        layers=(
            ("Embedding", embedding),
            unit,
            ("Dense", {"units": elements}),
        ),
        learning_rate=3e-3,
        optimizer=("Adam", {"clipnorm": 1.0}),
        batch_size=32,
        rounds=20,
        steps=200 if degree == 3 else 400,
        seeds=(0,),
        measurements=("longer_words",),
        **given,
    )


def delta_net_words(degree, reflections):
    unit = {
        "units": 64,
        "num_heads": 4,
        "key_dim": 16,
        "value_dim": 16,
        "reflections": reflections,
        "negative_eigenvalues": True,
        # A decay would forget what has to be kept for all of a word.
        "gated": False,
    }
    title = f"DeltaNet, {reflections} a step"
    return of_group_words(degree, title, "DeltaNet", unit)


def others_words(degree):
    orthogonal = {"units": 64, "return_sequences": True}
    return {
        f"words-{degree}-orthogonal": of_group_words(
            degree, "OrthogonalRNN", "OrthogonalRNN", orthogonal
        ),
        f"words-{degree}-rotrnn": of_group_words(
            degree,
            "RotRNN",
            "RotRNN",
            {"state_size": 128, "gamma_max": 0.9999, "activation": "gelu"},
        ),
        f"words-{degree}-mamba2": of_group_words(
            degree, "Mamba2", "Mamba2", {"state_size": 16, "num_heads": 4}
        ),
        f"words-{degree}-lstm": of_group_words(
            degree, "LSTM", "lstm", {"units": 64, "return_sequences": True}
        ),
    }


LSTM_COPYING = (
    ("lstm", {"units": 64, "return_sequences": True}),
    ("Dense", {"units": 8}),
)

RECIPES = {
    "addition-orthogonal-400": orthogonal_addition(400),
    "addition-orthogonal-800": orthogonal_addition(800),
    "addition-ldstack-750": ldstack_addition(750),
    "addition-lstm-400": baseline_addition("lstm", "LSTM"),
    "addition-rnn-400": baseline_addition("SimpleRNN", "SimpleRNN"),
    "addition-orthogonal-400-32": fewer_reflections(32),
    "addition-orthogonal-400-64": fewer_reflections(64),
    "copying-orthogonal-oplu-100": orthogonal_copying(
        100, "OPLU", activation="oplu"
    ),
    "copying-orthogonal-leaky-100": orthogonal_copying(100, "leaky ReLU"),
    "copying-300": linear_copying(300),
    "copying-2000": linear_copying(2000),
    "copying-lstm-300": of_copying(300, "LSTM", LSTM_COPYING),
    **{
        f"words-{degree}-delta-{reflections}": delta_net_words(
            degree, reflections
        )
        for degree in (3, 5)
        for reflections in (1, 2, 4)
    },
    **others_words(3),
    **others_words(5),
    # A pulse of 20 steps is a third of the shortest period of these states.
    "distant-linoss": of_distant_pulses(
        "LinOSS",
        "linoss",
        {
            "state_size": 64,
            "damping": True,
            "r_min": 0.9999,
            "r_max": 0.99999,
            "theta_max": 0.1,
        },
        # As for RotRNN below.
        groups={"log_timescale|stiffness|friction": 1e-3},
    ),
    "distant-s5": of_distant_pulses(
        "S5",
        "s5",
        {
            "state_size": 64,
            "dt_min": 6e-5,
            "dt_max": 6e-4,
            # With the usual scale of 1 the outputs are as small as dt, and a
            # product of two signs, their square.
            "kernel_initializer": {
                "class_name": "VarianceScaling",
                "config": {"scale": 100.0},
            },
        },
        # As for RotRNN below.
        groups={"log_timescale|transition_": 1e-2},
    ),
    "distant-rotrnn": of_distant_pulses(
        "RotRNN",
        "rotrnn",
        {
            "state_size": 128,
            "gamma_min": 0.9999,
            "gamma_max": 0.99999,
            "theta_max": 0.1,
        },
        # A training step that turned an angle by 0.003 would turn by 24 what is
        # left of the first pulse, 8,000 steps later.
        groups={"theta$": 1e-3},
    ),
}

ABOUT = {
    ADDITION: "Each step has a number and a mark; two steps are marked, and "
    "the target is the sum of their numbers. The figure is the number of "
    "training steps until the error on sequences that are not trained on is "
    "half that of always answering 1, measured every 20 steps for LDStack and "
    "every 100 for the others.",
    DISTANT: "Noise of 10,000 steps with two pulses of 20 steps, each up or "
    "down, the second 8,000 steps after the first. The class says whether both "
    "point the same way: neither pulse alone tells. Sequences are drawn anew "
    "in every step of training. What sets the frequencies trains at a "
    "thousandth of the rate, in S5 at a hundredth: over 8,000 steps, a small "
    "change of an angle is a large rotation. B and C of S5 begin ten times as "
    "large as usual, since its short time steps make its outputs small.",
    GROUPS: "Each letter of a word is one of the 6 permutations of three "
    "objects, or of the 120 of five; the answer at each letter is the product "
    "of all up to there. Training has words of 4 to 64 letters. The figure is "
    "the share that is right over all letters of words of 64; the table has "
    "the last letters of words of 32 to 512. A step of two reflections can be "
    "any permutation of three objects, one of four any of five. The transition "
    "of OrthogonalRNN and RotRNN is the same at every step, and that of Mamba2 "
    "a positive number.",
    COPYING: "Ten symbols out of eight, to be repeated after a delay. The "
    "figure is the number of training steps until the cross-entropy on "
    "sequences that are not trained on is a tenth of that of guessing, "
    "measured every 10 steps, or every 50 for OrthogonalRNN. With OPLU, which "
    "keeps norms, OrthogonalRNN learns it, and with leaky ReLU it does not, as "
    "in section 5.5 of Mhammedi et al. 2017. The LSTM has the optimizer and "
    "the learning rate that were chosen for the linear system.",
}
