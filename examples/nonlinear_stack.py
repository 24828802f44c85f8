r"""Approximate a nonlinear RNN and a multi-input system by linear systems.

The first table shows the largest error of an `LDStack` that runs a given
`keras.layers.SimpleRNN` in parallel over time, by the depth of the stack and by
its slope, the share of a step that is linear in time. A stack of one layer more
than there are steps is exact but for rounding. With the paper's slope of 1,
rounding is amplified too much: the error grows with the depth before it falls.
With a slope of 1/2 it falls from the start:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/nonlinear_stack.py --output plots

The second table corresponds to figure 2 of Kaul 2020: it compares a linear
system of several inputs with the mean of single-input systems, each of which
reads a random projection of the inputs. With independent projections, as in
the paper, the error falls with the square root of their number. The projections
that a `LinearDynamicalSystem` draws for mimo="average" are rows of orthogonal
matrices, whose mean is exact once there are as many projections as inputs.

This takes less than a minute. `--activation relu` and `--activation elu` select
other RNNs.
"""

import argparse

import numpy as np
from common import add_numbers
from common import add_plot
from common import prepare_backend
from common import save_plot
from pictures import new_figure

prepare_backend()

import keras

from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem

DEPTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 65)
SLOPES = (1.0, 0.75, 0.5)
PROJECTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
KINDS = ("independent", "orthogonal")
# Number of systems averaged, colour and number of curves, as in the paper.
SHOWN = ((1, "0.85", 32), (16, "tab:blue", 2), (512, "tab:red", 1))
PLOTTED_STEPS = 100


def main(arguments=None):
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    stacks = errors_of_stacks(options, generator)
    print_stacks(stacks, options)
    system, sequence = multi_input_system(options, generator)
    means = errors_of_means(system, sequence, options.draws, generator)
    print_means(means, options)
    if options.output:
        draw(stacks, means, system, sequence, options, generator)
    return stacks, means


def study(seed):
    """The table of `recipes/studies.py`: depths, and the errors by slope."""
    options = parse([f"--seed={seed}"])
    keras.utils.set_random_seed(seed)
    errors = errors_of_stacks(options, np.random.default_rng(seed))
    return DEPTHS, {f"slope {slope:g}": row for slope, row in errors.items()}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--activation",
        choices=("tanh", "elu", "relu"),
        default="tanh",
        help="activation of the RNN (default: %(default)s)",
    )
    add_numbers(
        parser,
        ("units", int, 16, "units of the RNN, states of the linear system"),
        ("steps", int, 64, "time steps of the RNN"),
        ("features", int, 3, "features of the RNN's sequences"),
        ("batch-size", int, 8, "sequences for the RNN"),
        ("inputs", int, 32, "inputs of the linear system"),
        ("long-steps", int, 1024, "time steps of the linear system"),
        ("draws", int, 8, "draws of the projections to average over"),
        ("seed", int, 0, "seed of sequences and weights"),
    )
    add_plot(parser, "both comparisons")
    return parser.parse_args(arguments)


def errors_of_stacks(options, generator):
    """By slope, the largest errors for `DEPTHS`."""
    shape = (options.batch_size, options.steps, options.features)
    sequences = generator.standard_normal(shape).astype("float32")
    rnn = keras.layers.SimpleRNN(
        options.units, activation=options.activation, return_sequences=True
    )
    expected = run(rnn, sequences)
    errors = {}
    for slope in SLOPES:
        stacks = [
            LDStack.from_simple_rnn(rnn, depth=depth, slope=slope)
            for depth in DEPTHS
        ]
        errors[slope] = [
            np.abs(run(stack, sequences) - expected).max() for stack in stacks
        ]
    return errors


def run(layer, sequences):
    return keras.ops.convert_to_numpy(layer(sequences)).astype("float64")


def multi_input_system(options, generator):
    """A linear system with many inputs and one output, and a sequence."""
    shape = (1, options.long_steps, options.inputs)
    sequence = generator.standard_normal(shape).astype("float32")
    system = LinearDynamicalSystem(
        1,
        options.units,
        mimo="general",
        feedthrough_initializer="zeros",
        seed=options.seed,
    )
    system.build(shape)
    return system, sequence


def errors_of_means(system, sequence, draws, generator):
    """By kind of projection, the errors for `PROJECTIONS`.

    An error is the root mean square over time and draws, relative to that of
    the system's outputs.
    """
    expected = run(system, sequence)

    def error(kind, count):
        outputs = [
            mean_of(system, count, kind, sequence, generator)
            for _ in range(draws)
        ]
        return np.sqrt(np.mean((outputs - expected) ** 2))

    scale = np.sqrt(np.mean(expected**2))
    return {
        kind: [error(kind, count) / scale for count in PROJECTIONS]
        for kind in KINDS
    }


def mean_of(system, projections, kind, sequence, generator):
    """The outputs of the mean of `projections` single-input systems."""
    mean = LinearDynamicalSystem(
        1,
        system.state_size,
        mimo="average",
        projections=projections,
        seed=int(generator.integers(2**31)),
    )
    mean.build(sequence.shape)
    for weight in system.weights:
        getattr(mean, weight.name).assign(weight)
    if kind == "independent":
        mean.projection.assign(generator.standard_normal(mean.projection.shape))
    return run(mean, sequence)


def print_stacks(errors, options):
    print(
        f"SimpleRNN({options.units}, {options.activation}), {options.steps} "
        "steps: the largest error of an LDStack\n"
    )
    print_rows("slope | depth", DEPTHS, errors, ".1e")


def print_means(errors, options):
    print(
        f"\n{options.units} states, {options.inputs} inputs, "
        f"{options.long_steps} steps: the relative error of a mean of "
        "single-input systems\n"
    )
    print_rows("projections |", PROJECTIONS, errors, ".2g")


def print_rows(title, columns, errors, form):
    print(f"| {title} {' | '.join(map(str, columns))} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in errors.items():
        print(f"| {name} | {' | '.join(f'{e:{form}}' for e in row)} |")


def draw(stacks, means, system, sequence, options, generator):
    figure, (by_depth, over_time, by_count) = new_figure(3)
    for slope, errors in stacks.items():
        by_depth.semilogy(DEPTHS, errors, ".-", label=f"slope {slope:g}")
    by_depth.set_xlabel("depth of the stack")
    by_depth.set_ylabel("largest error")
    by_depth.set_title(
        f"LDStack for SimpleRNN({options.units}, {options.activation}), "
        f"{options.steps} steps",
        fontsize="medium",
    )
    by_depth.legend()

    draw_over_time(over_time, system, sequence, generator)

    for kind, errors in means.items():
        by_count.loglog(PROJECTIONS, errors, ".-", label=kind)
    by_count.set_xlabel("projections")
    by_count.set_ylabel("relative error")
    by_count.set_title("means of single-input systems", fontsize="medium")
    by_count.legend()
    save_plot(figure, options, "nonlinear_stack.png")


def draw_over_time(axes, system, sequence, generator):
    """Figure 2 of the paper: means of systems with independent projections."""
    steps = np.arange(sequence.shape[1])[-PLOTTED_STEPS:]
    for count, color, lines in SHOWN:
        for line in range(lines):
            outputs = mean_of(system, count, KINDS[0], sequence, generator)
            label = f"mean of {count}" if line == 0 else None
            axes.plot(
                steps, outputs[0, steps, 0], color=color, lw=1, label=label
            )
    expected = run(system, sequence)[0, steps, 0]
    axes.plot(steps, expected, color="black", lw=1, label="the system")
    axes.set_ylim(*(np.array([-3, 3]) * np.abs(expected).max()))
    axes.set_xlabel("time step")
    axes.set_ylabel("output")
    axes.set_title("means of independent projections", fontsize="medium")
    axes.legend(ncols=2, loc="lower center")


if __name__ == "__main__":
    main()
