r"""Add two numbers that stand far apart in a long sequence.

Each step of a sequence holds a random number in [0, 1] and a mark. Two
numbers are marked, one in each half, and their sum is asked for at the end:
what a network has read must survive some hundred steps of noise. Always to
answer 1 gives a mean squared error of 0.167, where networks stay that forget.
An `OrthogonalRNN` of 128 units and 16 reflections leaves it (Mhammedi et al.
2017, section 5.2):

    pip install "keras-linrec[examples,jax]"    # or tensorflow, or torch
    python examples/addition_task.py

That takes some minutes on two cores and stops when the error, averaged over
the last 100 iterations, is below half of 0.167. Every iteration draws new
sequences. `--figure FILE.png` draws the error over the iterations, and
`--steps 800` makes the sequences twice as long, which takes twice as many
iterations and more:

    python examples/addition_task.py --steps 800 --iterations 16000 \
        --figure addition.png

What it takes: a transition near the identity (the `reflectors` begin in pairs
that nearly undo each other), an output that begins at 1, small weights of the
inputs, clipped gradients, and a learning rate that falls with the error.

An `LDStack` of linear systems does it in 100 to 300 iterations, 750 steps in
half a minute, for one eigenvalue of each system is 1 and sums up from the
start (Kaul 2020):

    python examples/addition_task.py --layer ldstack --steps 750

Linear systems do not multiply a number by its mark. A `Dense` layer of
rectified units before them does, a step at a time; its bias begins below zero,
so that it is silent for most numbers without a mark, and nothing has to be
unlearned.
"""

import argparse
import time

import numpy as np
from common import add_figure
from common import add_numbers
from common import choose_backend
from common import fit_drawn
from matplotlib.figure import Figure

choose_backend()

import keras

from keras_linrec.initializers import ReflectorPairs
from keras_linrec.layers import LDStack
from keras_linrec.layers import OrthogonalRNN

BASELINE = 1 / 6
AVERAGED = 100  # iterations
LAYERS = ("orthogonal", "ldstack")
GATES = 16  # units before an LDStack


def main(arguments=None):
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    model = build_model(options)
    print(
        f"{options.steps} time steps, {model.count_params()} parameters, "
        f"backend {keras.backend.backend()}. Always to answer 1 gives a mean "
        f"squared error of {BASELINE:.3f}; the goal is {BASELINE / 2:.4f}."
    )
    curve = train(model, options)
    generator = np.random.default_rng([options.seed, 1])
    error = model.evaluate(
        *additions(options.test_size, options.steps, generator),
        batch_size=options.batch_size,
        verbose=0,
    )
    print_result(curve, error, options)
    if options.figure:
        plot(curve, options)
    return curve


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--layer",
        choices=LAYERS,
        default=LAYERS[0],
        help="what reads the sequence (default: %(default)s)",
    )
    add_numbers(
        parser,
        ("steps", int, 400, "time steps of a sequence"),
        ("iterations", int, 5000, "training steps at most"),
        ("batch-size", int, 50, "sequences in a training step"),
        ("test-size", int, 1000, "sequences to test on"),
        ("units", int, 128, "of OrthogonalRNN"),
        ("reflections", int, 16, "of OrthogonalRNN"),
        ("deviation", float, 0.3, "of the reflectors of a pair at first"),
        ("depth", int, 2, "of LDStack"),
        ("learning-rate", float, 3e-3, "the highest, of Adam"),
        ("seed", int, 0, "of the sequences and the weights"),
    )
    add_figure(parser, "the error over the iterations")
    return parser.parse_args(arguments)


def build_model(options):
    layers = ldstack if options.layer == "ldstack" else orthogonal
    model = keras.Sequential(
        [keras.Input((options.steps, 2)), *layers(options)]
    )
    model.compile(
        keras.optimizers.Adam(options.learning_rate, global_clipnorm=0.1),
        "mean_squared_error",
    )
    return model


def orthogonal(options):
    return [
        OrthogonalRNN(
            options.units,
            reflections=options.reflections,
            reflector_initializer=ReflectorPairs(options.deviation),
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        ),
        # The mean of the sums.
        keras.layers.Dense(1, bias_initializer="ones"),
    ]


def ldstack(options):
    return [
        keras.layers.Dense(
            GATES,
            activation="relu",
            bias_initializer=keras.initializers.Constant(-0.5),
        ),
        LDStack(
            1,
            # A pair of eigenvalues for each gate, and the odd one out, which
            # is 1 and stays it.
            state_size=3 * GATES,
            depth=options.depth,
            activation="relu",
            eigenvalues="unit",
            output_initializer=keras.initializers.RandomNormal(stddev=0.1),
            feedthrough_initializer="zeros",
            bias_initializer="ones",
            return_sequences=False,
        ),
    ]


def additions(count, steps, generator):
    """Sequences (count, steps, 2) of numbers and marks, and the sums."""
    sequences = np.zeros((count, steps, 2), "float32")
    sequences[..., 0] = generator.random((count, steps))
    rows = np.arange(count)
    half = steps // 2
    first = generator.integers(half, size=count)
    second = generator.integers(half, steps, size=count)
    sequences[rows, first, 1] = sequences[rows, second, 1] = 1
    sums = (sequences[..., 0] * sequences[..., 1]).sum(axis=1, keepdims=True)
    return sequences, sums


def train(model, options):
    """The error, averaged over each hundred iterations."""
    generator = np.random.default_rng(options.seed)
    progress = Progress()
    fit_drawn(
        model,
        lambda: additions(options.batch_size, options.steps, generator),
        options.iterations,
        AVERAGED,
        progress,
    )
    return progress.curve


class Progress(keras.callbacks.Callback):
    """Keeps and prints the errors, and stops at half the baseline.

    It lowers the learning rate with the square of the error: a change of a
    weight of the inputs adds up over all steps, so that what took large
    steps to find is lost with them again.

    Attributes:
        curve: list of pairs, iterations and the mean error since the last.
    """

    def __init__(self):
        super().__init__()
        self.curve = []
        self.begin = time.perf_counter()

    def on_train_begin(self, logs=None):
        self.highest_rate = float(self.model.optimizer.learning_rate)

    def on_epoch_begin(self, epoch, logs=None):
        share = min(self.curve[-1][1] / BASELINE, 1.0) if self.curve else 1.0
        self.model.optimizer.learning_rate = share**2 * self.highest_rate

    def on_epoch_end(self, epoch, logs=None):
        iterations = (epoch + 1) * self.params["steps"]
        error = float(logs["loss"])
        self.curve.append((iterations, error))
        seconds = time.perf_counter() - self.begin
        print(
            f"iteration {iterations:5}: error {error:.4f}, {seconds:.0f} s",
            flush=True,
        )
        self.model.stop_training = error < BASELINE / 2


def print_result(curve, error, options):
    iterations, last = curve[-1]
    reached = "yes" if last < BASELINE / 2 else "no"
    print("\n| steps | iterations | last 100 | new sequences | goal reached |")
    print("|---|---|---|---|---|")
    print(
        f"| {options.steps} | {iterations} | {last:.4f} | {error:.4f} | "
        f"{reached} |"
    )


def plot(curve, options):
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve), ".-", label=options.layer)
    axes.axhline(BASELINE, color="gray", label="always 1")
    axes.axhline(BASELINE / 2, color="gray", ls="--", label="half of it")
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"mean squared error of {AVERAGED} iterations")
    axes.set_ylim(0, 2 * BASELINE)
    axes.legend()
    figure.savefig(options.figure, dpi=150)


if __name__ == "__main__":
    main()
