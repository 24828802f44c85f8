r"""Add two numbers that are far apart in a long sequence.

Each step of a sequence holds a random number in [0, 1] and a mark. Two numbers
are marked, one in each half, and the target is their sum: the network must
remember them over hundreds of steps of noise. Always answering 1 gives a mean
squared error of 0.167, at which networks that forget remain. An `OrthogonalRNN`
with 128 units and 16 reflections improves on it (Mhammedi et al. 2017, section
5.2):

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/addition_task.py

This takes some minutes on two cores. Training stops when the error, averaged
over the last 100 iterations, is below half of 0.167. Every iteration draws new
sequences. `--output DIR` plots the error against iterations. `--steps 800`
doubles the length of the sequences:

    python examples/addition_task.py --steps 800 --iterations 8000 \
        --output plots

Training depends on a transition near the identity (the `reflectors` start in
pairs that nearly cancel), an output that starts at 1, small input weights,
clipped gradients, a learning rate that falls with the error, and a `beta_2` of
0.99: in the recipe of `reproduce.py` for 800 steps, Adam's usual 0.999 took 1.6
times the iterations.

An `LDStack` of linear systems needs 100 to 300 iterations, half a minute for
sequences of 750 steps, because one eigenvalue of each system is 1 and sums its
inputs from the start (Kaul 2020):

    python examples/addition_task.py --layer ldstack --steps 750

Linear systems cannot multiply a number by its mark. A `Dense` layer with ReLU
before them can. Its bias starts below zero, so that it ignores most unmarked
numbers and has nothing to unlearn.
"""

import argparse
import time

import numpy as np
from common import add_numbers
from common import add_plot
from common import fit_drawn
from common import prepare_backend
from common import save_plot
from pictures import new_figure

prepare_backend()

import keras

from keras_linrec.initializers import ReflectorPairs
from keras_linrec.layers import LDStack
from keras_linrec.layers import OrthogonalRNN

BASELINE = 1 / 6
AVERAGED = 100  # iterations
# Adam's `beta_2`, by layer. 0.99 can keep an LDStack from learning.
BETA_2 = {"orthogonal": 0.99, "ldstack": 0.999}
GATES = 16  # units before an LDStack


def main(arguments=None):
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    model = build_model(options)
    print(
        f"{options.steps} time steps, {model.count_params()} parameters, "
        f"backend {keras.backend.backend()}. Always answering 1 gives a mean "
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
    if options.output:
        plot(curve, options)
    return curve


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--layer",
        choices=BETA_2,
        default="orthogonal",
        help="the recurrent layer (default: %(default)s)",
    )
    add_numbers(
        parser,
        ("steps", int, 400, "time steps of a sequence"),
        ("iterations", int, 5000, "maximum number of training steps"),
        ("batch-size", int, 50, "sequences per training step"),
        ("test-size", int, 1000, "test sequences"),
        ("units", int, 128, "units of OrthogonalRNN"),
        ("reflections", int, 16, "reflections of OrthogonalRNN"),
        ("deviation", float, 0.3, "initial difference in reflector pairs"),
        ("depth", int, 2, "depth of LDStack"),
        ("learning-rate", float, 3e-3, "peak learning rate of Adam"),
        ("seed", int, 0, "seed of sequences and weights"),
    )
    add_plot(parser, "the error against iterations")
    return parser.parse_args(arguments)


def build_model(options):
    layers = ldstack if options.layer == "ldstack" else orthogonal
    model = keras.Sequential(
        [keras.Input((options.steps, 2)), *layers(options)]
    )
    model.compile(
        keras.optimizers.Adam(
            options.learning_rate,
            beta_2=BETA_2[options.layer],
            global_clipnorm=0.1,
        ),
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
        # 1 is the mean of the sums.
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
            # For each gate, a pair of eigenvalues and an unpaired one, which
            # is fixed at 1.
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
    """Sequences (count, steps, 2) of numbers and marks, and their sums."""
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
    """Train; return the curve of `Progress`."""
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
    """Record and print the error, and stop at half the baseline.

    The learning rate falls with the square of the error. A change in an input
    weight adds up over all time steps, so large updates near the optimum
    would undo what was learned.

    Attributes:
        curve: list of pairs of the iteration and the mean error since the
            previous pair.
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
    figure, (axes,) = new_figure(height=3.6)
    axes.plot(*zip(*curve), ".-", label=options.layer)
    axes.axhline(BASELINE, color="gray", label="always 1")
    axes.axhline(BASELINE / 2, color="gray", ls="--", label="half of that")
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"mean squared error over {AVERAGED} iterations")
    axes.set_ylim(0, 2 * BASELINE)
    axes.legend()
    save_plot(figure, options, "addition_task.png")


if __name__ == "__main__":
    main()
