r"""Repeat ten symbols after a long delay, which an LSTM does not learn.

A sequence consists of ten symbols out of eight, a delay of blanks, a mark, and
ten more blanks, during which the network must repeat the symbols in order.
Guessing gives a cross-entropy of log(8) = 2.079. A `LinearDynamicalSystem` with
eigenvalues of magnitude 1 does not forget: its outputs are a linear function of
all its inputs (Kaul 2020):

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/copy_memory.py --output plots

This uses a delay of 300 steps and takes some minutes on two cores. Nearly all
of that time goes into the LSTM trained for comparison, which is still guessing
at the end. The linear system falls below a tenth of the baseline after 30
iterations, within seconds. For a delay of 2000 it needs 60 iterations, half a
minute. One iteration of the LSTM then takes some seconds; skip it with

    python examples/copy_memory.py --delay 2000 --lstm-iterations 0

Training depends on outputs that are equal at first (an output kernel of zeros),
so that no symbol has a random advantage, and on Adamax. Over 2000 steps, a
change in an angle has 2000 times the effect; with Adam, the first updates
destroy the angles, which takes more than 200 iterations to repair.
"""

import argparse
import math
import time

import numpy as np
from common import add_numbers
from common import add_plot
from common import fit_drawn
from common import lstm
from common import prepare_backend
from common import save_plot
from pictures import legend_below
from pictures import new_figure

prepare_backend()

import keras

from keras_linrec.layers import LinearDynamicalSystem

SYMBOLS, COPIED = 8, 10
BLANK, MARK = SYMBOLS, SYMBOLS + 1
BASELINE = math.log(SYMBOLS)
GOAL = BASELINE / 10
AVERAGED = 10  # iterations


def main(arguments=None):
    options = parse(arguments)
    print(
        f"A delay of {options.delay} steps, backend "
        f"{keras.backend.backend()}. Guessing gives a cross-entropy of "
        f"{BASELINE:.3f}; the goal is {GOAL:.3f}."
    )
    iterations = {"LinearDynamicalSystem": options.iterations}
    if options.lstm_iterations:
        iterations["LSTM"] = options.lstm_iterations
    curves, rows = {}, []
    for name, count in iterations.items():
        keras.utils.set_random_seed(options.seed)
        model = build_model(name, options)
        curves[name] = train(model, count, options)
        entropy, accuracy = test(model, options)
        rows.append((name, model.count_params(), entropy, accuracy))
    print_table(rows, curves)
    if options.output:
        draw(curves, options)
    return curves


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("delay", int, 300, "steps between the last symbol and the mark"),
        ("iterations", int, 300, "training steps, a multiple of 10"),
        ("lstm-iterations", int, 300, "training steps of the LSTM"),
        ("batch-size", int, 256, "sequences per training step"),
        ("test-size", int, 1024, "test sequences"),
        ("state-size", int, 160, "states of the linear system"),
        ("lstm-units", int, 64, "units of the LSTM"),
        ("learning-rate", float, 0.01, "learning rate of Adamax"),
        ("seed", int, 0, "seed of sequences and weights"),
    )
    add_plot(parser, "the cross-entropy against iterations")
    return parser.parse_args(arguments)


def build_model(name, options):
    """A model from sequences of 10 features to logits (batch, 10, 8)."""
    steps = options.delay + 2 * COPIED
    last_steps = keras.layers.Cropping1D((steps - COPIED, 0))
    if name == "LSTM":
        layers = [
            lstm(options.lstm_units, return_sequences=True),
            last_steps,
            keras.layers.Dense(SYMBOLS),
        ]
    else:
        layers = [
            LinearDynamicalSystem(
                SYMBOLS,
                state_size=options.state_size,
                eigenvalues="unit",
                # Equal logits, so that no symbol has a random advantage.
                output_initializer="zeros",
                feedthrough_initializer="zeros",
            ),
            last_steps,
        ]
    model = keras.Sequential([keras.Input((steps, SYMBOLS + 2)), *layers])
    model.compile(
        keras.optimizers.Adamax(options.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def copies(count, delay, generator):
    """One-hot sequences (count, delay + 20, 10), and the symbols to repeat."""
    symbols = generator.integers(SYMBOLS, size=(count, COPIED))
    tokens = np.full((count, delay + 2 * COPIED), BLANK)
    tokens[:, :COPIED] = symbols
    tokens[:, -COPIED - 1] = MARK
    return np.eye(SYMBOLS + 2, dtype="float32")[tokens], symbols


def train(model, iterations, options):
    """Train; return the curve of `Progress`."""
    generator = np.random.default_rng(options.seed)
    progress = Progress(model.layers[0].__class__.__name__)
    fit_drawn(
        model,
        lambda: copies(options.batch_size, options.delay, generator),
        iterations,
        AVERAGED,
        progress,
    )
    return progress.curve


class Progress(keras.callbacks.Callback):
    """Record and print the cross-entropy.

    Attributes:
        curve: list of pairs of the iteration and the mean cross-entropy since
            the previous pair.
    """

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.curve = []
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        iterations = (epoch + 1) * self.params["steps"]
        self.curve.append((iterations, float(logs["loss"])))
        seconds = time.perf_counter() - self.begin
        print(
            f"{self.name}, iteration {iterations:4}: cross-entropy "
            f"{logs['loss']:.4f}, {seconds:.0f} s",
            flush=True,
        )


def test(model, options):
    """The cross-entropy and the accuracy per symbol, on new sequences."""
    generator = np.random.default_rng([options.seed, 1])
    return model.evaluate(
        *copies(options.test_size, options.delay, generator),
        batch_size=options.batch_size,
        verbose=0,
    )


def print_table(rows, curves):
    print(
        "\n| layer | parameters | iterations | cross-entropy on new "
        f"sequences | symbols correct | below {GOAL:.3f} after |"
    )
    print("|---" * 6 + "|")
    for name, parameters, entropy, accuracy in rows:
        iterations, _ = curves[name][-1]
        reached = goal_reached(curves[name]) or "never"
        print(
            f"| {name} | {parameters} | {iterations} | {entropy:.4f} | "
            f"{accuracy:.2%} | {reached} |"
        )


def goal_reached(curve):
    """The iterations needed for a tenth of the baseline, or `None`."""
    return next((i for i, entropy in curve if entropy < GOAL), None)


def draw(curves, options):
    figure, (axes,) = new_figure(height=4)
    for name, curve in curves.items():
        axes.semilogy(*zip(*curve), ".-", label=name)
    axes.axhline(BASELINE, color="gray", label="guessing, log(8)")
    axes.axhline(GOAL, color="gray", ls="--", label="a tenth of that")
    axes.set_title(f"a delay of {options.delay} steps")
    axes.set_xlabel("iteration")
    axes.set_ylabel("cross-entropy per symbol")
    legend_below(figure, axes)
    save_plot(figure, options, "copy_memory.png")


if __name__ == "__main__":
    main()
