"""Classify handwritten digits with stable recurrent units.

A single layer reads an image, and a Dense layer classifies the digit from its
last output. The layer is `LipschitzRNN`, `AntisymmetricRNN`, the neural-ODE RNN
(`LipschitzRNN` without its linear part and with an unconstrained matrix),
`OrthogonalRNN` or `LDStack`:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/stable_digits.py

With scikit-learn's 8x8 digits, this takes some minutes on two cores. For MNIST,
see sequential_digits.py for the file. The last line of the table below is the
task of Erichson et al. 2021, section 7:

    python examples/stable_digits.py --data ~/.keras/datasets/mnist.npz \
        --task eight-pixels --layer lipschitz --epochs 15

| task | steps of a 28x28 image | features per step |
|---|---|---|
| `pixels` | 784 | 1 |
| `permuted` | 784, in an order that is the same for every image | 1 |
| `noise-padded` | 28 rows, then noise up to `--steps` | 28 |
| `eight-pixels` | 98 | 8 |

`LDStack` has `--depth`, `--slope` and `--eigenvalues`. A stack of depth 2
trains with the paper's slope of 1. A deeper one needs a smaller slope, such as
0.9; otherwise its corrections grow with time (see nonlinear_stack.py).

`--ablation beta` and `--ablation alpha` train a `LipschitzRNN` for each of
several values and print the accuracies (the paper's figure 3):

    python examples/stable_digits.py --task permuted --ablation beta
"""

import argparse
import math
import time

from common import BACKENDS
from common import add_numbers
from common import add_plot
from common import cosine_schedule
from common import prepare_backend
from common import save_plot
from digits import TEST_BATCH_SIZE
from digits import add_data
from digits import compile_model
from digits import first
from digits import read_task
from digits import scaled_pixels

prepare_backend()

import keras

from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import LDStack
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.ops.algebra.eigenvalues import PARAMETERIZATIONS

# By layer, what a plot calls it.
NAMES = {
    "lipschitz": "LipschitzRNN",
    "neural-ode": "neural ODE",
    "antisymmetric": "AntisymmetricRNN",
    "orthogonal": "OrthogonalRNN",
    "ldstack": "LDStack",
}
LAYERS = tuple(NAMES)
# By task, what a plot says of it.
TITLES = {
    "pixels": "digits, one pixel per step",
    "permuted": "digits, one pixel per step, permuted",
    "eight-pixels": "digits, eight pixels per step",
    "noise-padded": "digits row by row, then noise",
}
TASKS = tuple(TITLES)
# The paper's best values of beta for permuted and for ordered pixels.
BETAS = {"permuted": 0.8, "noise-padded": 0.8}
BETA = 0.65
ABLATIONS = {
    "beta": (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0),
    "alpha": (0.0, 0.4, 0.8, 1.0, 1.2, 1.6, 2.0),
}


def main(arguments=None):
    options = parse(arguments)
    train, test, classes = read_task(options.data, options.task)
    train = first(options.train_size, train, "--train-size", "training")
    test = first(options.test_size, test, "--test-size", "test")
    print(
        f"{len(train[0])} training images, {len(test[0])} test images, "
        f"backend {keras.backend.backend()}."
    )
    table, curves = [], {}
    for settings in runs(options):
        keras.utils.set_random_seed(options.seed)
        model = build_model(options, settings, train[0], classes)
        begin = time.perf_counter()
        history = fit(model, options, train, test).history
        seconds = time.perf_counter() - begin
        curves[describe(settings)] = history["val_accuracy"]
        _, accuracy = model.evaluate(
            *test, batch_size=TEST_BATCH_SIZE, verbose=0
        )
        table.append((describe(settings), accuracy, seconds))
    print(f"\n| {options.task} | test accuracy | seconds of training |")
    print("|---|---|---|")
    for name, accuracy, seconds in table:
        print(f"| {name} | {accuracy:.2%} | {seconds:.0f} |")
    if options.output:
        plot(curves, options)
    return table


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=BACKENDS,
    )
    add_data(parser)
    parser.add_argument(
        "--layer",
        nargs="+",
        choices=LAYERS,
        default=LAYERS,
        help="one or more layers (default: all)",
    )
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="pixels",
        help="how images become sequences (default: %(default)s)",
    )
    parser.add_argument(
        "--ablation",
        choices=tuple(ABLATIONS),
        help="train a LipschitzRNN for several values of this parameter",
    )
    parser.add_argument(
        "--solver", choices=("euler", "rk2", "rk4"), default="euler"
    )
    parser.add_argument(
        "--eigenvalues",
        choices=PARAMETERIZATIONS,
        default="standard",
        help="eigenvalues of LDStack (default: %(default)s)",
    )
    beta = f"beta of LipschitzRNN ({BETA}; permuted, noise-padded: 0.8)"
    learning_rate = "peak learning rate (0.003; eight-pixels: 0.01)"
    add_numbers(
        parser,
        ("beta", float, None, beta),
        ("alpha", float, 1.0, "weight of LipschitzRNN's linear part"),
        ("gamma", float, 1e-3, "gamma of LipschitzRNN and AntisymmetricRNN"),
        ("step-size", float, None, "of the solver (24 / steps, at most 0.1)"),
        ("units", int, 128, "units of the layer"),
        ("reflections", int, 16, "reflections of OrthogonalRNN"),
        ("depth", int, 2, "depth of LDStack"),
        ("slope", float, 1.0, "slope of LDStack"),
        ("steps", int, 1000, "time steps of the noise-padded task"),
        ("epochs", int, None, "training epochs (30; --data: 5)"),
        ("batch-size", int, None, "images per training step (32; --data: 64)"),
        ("learning-rate", float, None, learning_rate),
        ("train-size", int, None, "number of training images (all)"),
        ("test-size", int, None, "number of test images (all)"),
        ("seed", int, 0, "seed of weights and order of the images"),
    )
    add_plot(parser, "the test accuracy against epochs")
    options = parser.parse_args(arguments)
    if options.beta is None:
        options.beta = BETAS.get(options.task, BETA)
    if options.epochs is None:
        options.epochs = 5 if options.data else 30
    if options.batch_size is None:
        options.batch_size = 64 if options.data else 32
    if options.learning_rate is None:
        short = options.task == "eight-pixels"
        options.learning_rate = 0.01 if short else 0.003
    return options


def runs(options):
    """The arguments of each layer to train, by name."""
    solver = {"solver": options.solver, "step_size": options.step_size}
    skew = {"gamma": options.gamma, **solver}
    settings = {
        "lipschitz": {"beta": options.beta, "alpha": options.alpha, **skew},
        "neural-ode": solver,
        "antisymmetric": skew,
        "orthogonal": {"reflections": options.reflections},
        "ldstack": {
            "depth": options.depth,
            "slope": options.slope,
            "eigenvalues": options.eigenvalues,
        },
    }
    if options.ablation is None:
        return [{"layer": name, **settings[name]} for name in options.layer]
    varied = {"layer": "lipschitz", **settings["lipschitz"]}
    values = ABLATIONS[options.ablation]
    return [{**varied, options.ablation: value} for value in values]


def describe(settings):
    settings = dict(settings)
    layer = settings.pop("layer")
    given = {n: v for n, v in settings.items() if v is not None}
    return ", ".join([layer, *(f"{n} {v}" for n, v in given.items())])


def build_model(options, settings, sequences, classes):
    """A model of scaling, optional noise, the layer and a Dense layer."""
    padding, steps = [], sequences.shape[1]
    if options.task == "noise-padded":
        padding, steps = [NoisePadding(options.steps)], options.steps
    return keras.Sequential(
        [
            *scaled_pixels(sequences),
            *padding,
            build_layer(options.units, steps, **settings),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def build_layer(units, steps, layer, step_size=None, **settings):
    """A layer of `LAYERS`, for sequences of `steps` steps."""
    # A transition near the identity sums up all inputs. A stack needs small
    # initial states, for which its activation is nearly linear.
    small = keras.initializers.RandomNormal(stddev=1 / math.sqrt(steps))
    if layer == "orthogonal":
        return OrthogonalRNN(units, kernel_initializer=small, **settings)
    if layer == "ldstack":
        return LDStack(
            units,
            state_size=units,
            mimo="general",
            kernel_initializer=small,
            return_sequences=False,
            **settings,
        )
    if step_size is None:
        step_size = min(0.1, 24 / steps)
    settings["step_size"] = step_size
    if layer == "antisymmetric":
        return AntisymmetricRNN(units, **settings)
    if layer == "neural-ode":
        settings |= {"alpha": 0.0, "beta": 0.5, "gamma": 0.0}
    return LipschitzRNN(units, **settings)


class NoisePadding(keras.layers.Layer):
    """Append standard normal noise to sequences, different in every call.

    As a layer, because sixty thousand padded sequences would fill the memory.

    Args:
        steps: integer, the length including the noise.
        seed: integer. Defaults to `None`: random.
    """

    def __init__(self, steps, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.steps = steps
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, sequences_shape):
        if sequences_shape[1] > self.steps:
            raise ValueError(
                "`steps` should be at least the length of the sequences, "
                f"{sequences_shape[1]}. Received: steps={self.steps}"
            )

    def call(self, sequences):
        size, time, features = keras.ops.shape(sequences)
        noise = keras.random.normal(
            (size, self.steps - time, features),
            dtype=sequences.dtype,
            seed=self.seed_generator,
        )
        return keras.ops.concatenate([sequences, noise], axis=1)

    def compute_output_shape(self, sequences_shape):
        return (sequences_shape[0], self.steps, sequences_shape[2])


def fit(model, options, train, test):
    steps = options.epochs * math.ceil(len(train[0]) / options.batch_size)
    rate = cosine_schedule(options.learning_rate, steps)
    compile_model(model, keras.optimizers.Adam(rate, global_clipnorm=1.0))
    return model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test,
        validation_batch_size=TEST_BATCH_SIZE,
        verbose=2,
    )


def plot(curves, options):
    from pictures import legend_below
    from pictures import new_figure

    figure, (axes,) = new_figure(height=3.6 + 0.2 * len(curves))
    for name, curve in curves.items():
        label = name if options.ablation else NAMES[name.split(",")[0]]
        axes.plot(range(1, len(curve) + 1), curve, ".-", label=label)
    axes.set_title(TITLES[options.task])
    axes.set_xlabel("epoch")
    axes.set_ylabel("test accuracy")
    legend_below(figure, axes)
    save_plot(figure, options, "stable_digits.png")


if __name__ == "__main__":
    main()
