"""Compare the gradients of recurrent units after 2000 steps back in time.

For untrained units of equal size on random inputs, the table (and the plot with
--output) shows the norm of the gradient of the last output with respect to
earlier states, relative to the norm at the output (Mhammedi et al. 2017,
sections 1 and 5.5):

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/gradient_norms.py --output plots

This takes a minute.
"""

import argparse

import numpy as np
from common import add_numbers
from common import add_plot
from common import lstm
from common import prepare_backend
from common import save_plot

prepare_backend()

import keras

from keras_linrec import analysis
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import OrthogonalRNN


def main(arguments=None):
    options = parse(arguments)
    steps, curves = measure(options)
    report(steps, curves)
    if options.output:
        draw(steps, curves, options)


def study(seed):
    """The table of `recipes/studies.py`: the steps, and the norms by unit."""
    return measure(parse([f"--seed={seed}"]))


def measure(options):
    """The numbers of steps back, and the norms for them by unit."""
    keras.utils.set_random_seed(options.seed)
    steps = np.unique(
        np.geomspace(1, options.steps, options.points).astype(int)
    ).tolist()
    generator = np.random.default_rng(options.seed)
    shape = (options.batch_size, options.steps, 1)
    sequences = generator.standard_normal(shape)
    curves = {}
    for name, layer in units(options.units).items():
        layer.build(sequences.shape)
        norms = analysis.gradient_norms(layer, sequences, steps)
        curves[name] = np.exp(np.log(norms + 1e-45).mean(axis=1))
    return steps, curves


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("steps", int, 2000, "largest number of steps back"),
        ("units", int, 64, "units of each layer"),
        ("batch-size", int, 4, "sequences"),
        ("points", int, 8, "points of each curve"),
        ("seed", int, 0, "seed of sequences and weights"),
    )
    add_plot(parser, "the norms against steps")
    return parser.parse_args(arguments)


def units(size):
    return {
        "orthogonal, OPLU": OrthogonalRNN(size, activation="oplu"),
        "unitary, OPLU": OrthogonalRNN(
            size, activation="oplu", field="complex"
        ),
        "orthogonal, leaky ReLU": OrthogonalRNN(size),
        "Lipschitz": LipschitzRNN(size),
        "LSTM": lstm(size),
        "tanh": keras.layers.SimpleRNN(size),
    }


def report(steps, curves):
    print(f"| steps back | {' | '.join(map(str, steps))} |")
    print("|---" * (len(steps) + 1) + "|")
    for name, curve in curves.items():
        print(f"| {name} | {' | '.join(f'{n:.2g}' for n in curve)} |")


def draw(steps, curves, options):
    from pictures import legend_below
    from pictures import new_figure

    figure, (axes,) = new_figure(height=4)
    for name, curve in curves.items():
        axes.loglog(steps, curve, marker=".", label=name)
    axes.set_ylim(1e-12, 1e3)
    axes.set_xlabel("steps back in time")
    axes.set_ylabel("relative norm of the gradient")
    legend_below(figure, axes)
    save_plot(figure, options, "gradient_norms.png")


if __name__ == "__main__":
    main()
