r"""Repeat ten symbols after a long silence, which an LSTM does not learn.

A sequence is ten symbols of eight, a delay of blanks, a mark, and ten more
blanks, during which the symbols are asked for in their order. To guess gives a
cross-entropy of log(8) = 2.079. A `LinearDynamicalSystem` whose eigenvalues
have magnitude 1 forgets nothing, and its outputs are a linear function of all
that it has read (Kaul 2020):

    pip install "keras-linrec[examples,jax]"    # or tensorflow, or torch
    python examples/copy_memory.py --figure copy.png

That runs a delay of 300 steps and takes some minutes on two cores, nearly all
of them for the LSTM that it is compared with, which still guesses in the end.
The linear system is below a tenth of the guess after 30 iterations, some
seconds. Over a delay of 2000 it takes 60, half a minute, and an iteration of
the LSTM some seconds: 0 of them leave it out:

    python examples/copy_memory.py --delay 2000 --lstm-iterations 0

What it takes: outputs that are all alike at first (an output kernel of zeros),
so that no symbol is favoured by chance, and Adamax: over 2000 steps a change
of an angle counts 2000 times, and with Adam's first steps the angles are lost
for more than 200 iterations.
"""

import argparse
import math
import time

import numpy as np
from common import add_figure
from common import add_numbers
from common import choose_backend
from common import fit_drawn
from common import lstm
from matplotlib.figure import Figure

choose_backend()

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
        f"{keras.backend.backend()}. To guess gives a cross-entropy of "
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
    if options.figure:
        draw(curves, options)
    return curves


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("delay", int, 300, "steps between the last symbol and the mark"),
        ("iterations", int, 300, "training steps, in tens"),
        ("lstm-iterations", int, 300, "those of the LSTM"),
        ("batch-size", int, 256, "sequences in a training step"),
        ("test-size", int, 1024, "sequences to test on"),
        ("state-size", int, 160, "of the linear system"),
        ("lstm-units", int, 64, "of the LSTM"),
        ("learning-rate", float, 0.01, "of Adamax"),
        ("seed", int, 0, "of the sequences and the weights"),
    )
    add_figure(parser, "the cross-entropy over the iterations")
    return parser.parse_args(arguments)


def build_model(name, options):
    """Logits (batch, 10, 8) of the symbols, from sequences of 10 features."""
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
                # All symbols alike, so that none is favoured by chance.
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
    """One-hot sequences (count, delay + 20, 10), and what is to repeat."""
    symbols = generator.integers(SYMBOLS, size=(count, COPIED))
    tokens = np.full((count, delay + 2 * COPIED), BLANK)
    tokens[:, :COPIED] = symbols
    tokens[:, -COPIED - 1] = MARK
    return np.eye(SYMBOLS + 2, dtype="float32")[tokens], symbols


def train(model, iterations, options):
    """Pairs of iterations and the mean cross-entropy since the last."""
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
    """Keeps and prints the cross-entropies.

    Attributes:
        curve: list of pairs, iterations and the mean cross-entropy since the
            last.
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
    """The cross-entropy and the accuracy of a symbol, on new sequences."""
    generator = np.random.default_rng([options.seed, 1])
    return model.evaluate(
        *copies(options.test_size, options.delay, generator),
        batch_size=options.batch_size,
        verbose=0,
    )


def print_table(rows, curves):
    print(
        "\n| layer | parameters | iterations | cross-entropy of new "
        f"sequences | right symbols | below {GOAL:.3f} after |"
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
    """The iterations it took to a tenth of the baseline, or `None`."""
    return next((i for i, entropy in curve if entropy < GOAL), None)


def draw(curves, options):
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.semilogy(*zip(*curve), ".-", label=name)
    axes.axhline(BASELINE, color="gray", label="a guess, log(8)")
    axes.axhline(GOAL, color="gray", ls="--", label="a tenth of it")
    axes.set_title(f"a delay of {options.delay} steps")
    axes.set_xlabel("iteration")
    axes.set_ylabel("cross-entropy of a symbol")
    axes.legend()
    figure.savefig(options.figure, dpi=150)


if __name__ == "__main__":
    main()
