"""Show what the state of an LSSL remembers, for each of the measures.

A signal drives the discretised systems x' = A x + B u, and its past is
reconstructed from the final state:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/lssl_measures.py

This takes seconds and downloads nothing. It prints the error of the
reconstruction for every measure and writes `lssl_measures.png`, and
`lssl_memory.png` with two of the measures. A larger state remembers more:

    python examples/lssl_measures.py --state-size 64
"""

import argparse

import numpy as np
from common import add_numbers
from common import add_output
from common import make_folder
from common import prepare_backend
from common import require_whole
from pictures import legend_below
from pictures import new_figure
from pictures import save

# No backend computes anything here, but Keras needs one that is installed.
prepare_backend()

from keras_linrec.ops.structured.hippo import hippo_matrices
from keras_linrec.ops.structured.hippo import measure_density
from keras_linrec.ops.structured.hippo import reconstruct

PLOT_FILE = "lssl_measures.png"
# A measure of the whole past, and one of a window.
SHORT_PLOT_FILE = "lssl_memory.png"
SHORT = {
    "LegS": "LegS: all of the past, older parts more coarsely",
    "LegT": "LegT: a window of the past, all of it alike",
}
POINTS = 1000
# Title, measure, parameters and duration of the signal: one window, or several
# of the measure's own units of time.
MEASURES = (
    ("LegS", "legs", {}, 12.0),
    ("LagT", "lagt", {}, 12.0),
    (
        "generalised Laguerre, order 0.5",
        "generalized_laguerre",
        {"order": 0.5, "tilt": 0.5},
        12.0,
    ),
    ("LegT", "legt", {}, 1.0),
    ("Chebyshev, first kind", "chebyshev", {"kind": 1}, 1.0),
    ("Gegenbauer, order 2", "gegenbauer", {"order": 2.0}, 1.0),
    ("Jacobi (0, 3)", "jacobi", {"alpha": 0.0, "beta": 3.0}, 1.0),
)


def main(arguments=None):
    options = parse(arguments)
    make_folder(options.output)
    print(f"{'measure':34}error of the reconstruction, weighted by the measure")
    memories = {}
    for title, measure, parameters, duration in MEASURES:
        memory = remember(
            measure, parameters, duration, options.state_size, options.steps
        )
        memories[title] = memory
        print(f"{title:34}{100 * memory['error']:.2g}%")
    shown = {
        f"{title}: {100 * memory['error']:.2g}%": memory
        for title, memory in memories.items()
    }
    few = {SHORT[title]: memories[title] for title in SHORT}
    plot(few, 2.3, options.output / SHORT_PLOT_FILE)
    plot(shown, 1.7, options.output / PLOT_FILE)
    for name in (SHORT_PLOT_FILE, PLOT_FILE):
        print(f"Wrote {name} to {options.output.resolve()}.")


def parse(arguments):
    parser = argparse.ArgumentParser(
        description="Plot what the state of an LSSL remembers of a signal, "
        "for each of the measures.",
    )
    add_numbers(
        parser,
        ("state-size", int, 20, "size of the state"),
        ("steps", int, 4000, "time steps of the signal"),
    )
    add_output(parser, PLOT_FILE)
    options = parser.parse_args(arguments)
    require_whole(parser, options, "state_size", least=1, most=256)
    require_whole(parser, options, "steps", least=1, most=10**6)
    return options


def signal(fraction):
    """The signal at fractions of its duration before the present."""
    waves = np.sin(9 * fraction + 1) + 0.7 * np.cos(31 * fraction)
    # Zero at both ends, as the Laguerre measures assume.
    return np.sin(np.pi * fraction) ** 2 * waves


def remember(measure, parameters, duration, state_size, steps):
    """The past of the signal, its reconstruction, and the error."""
    matrix, vector = hippo_matrices(measure, state_size, **parameters)
    inputs = signal(np.linspace(1, 0, steps + 1))
    state = drive(matrix, vector, inputs, duration / steps)

    positions = (np.arange(POINTS) + 0.5) * duration / POINTS
    past = signal(positions / duration)
    remembered = reconstruct(measure, state, positions, **parameters)
    density = measure_density(measure, positions, **parameters)
    error = np.sum(density * (remembered - past) ** 2)
    return {
        "positions": positions,
        "past": past,
        "remembered": remembered,
        "density": density,
        "error": np.sqrt(error / np.sum(density * past**2)),
    }


def drive(matrix, vector, inputs, step):
    """The state after the last input, by the bilinear transform."""
    identity = np.eye(len(matrix))
    implicit = identity - step / 2 * matrix
    a_bar = np.linalg.solve(implicit, identity + step / 2 * matrix)
    b_bar = np.linalg.solve(implicit, step / 2 * vector)
    state = np.zeros(len(matrix))
    for before, after in zip(inputs[:-1], inputs[1:]):
        state = a_bar @ state + b_bar * (before + after)
    return state


def plot(memories, height, path):
    """Draw memories by their titles, in panels of this height in inches."""
    figure, panels = new_figure(len(memories), height)
    for axes, (title, memory) in zip(panels, memories.items()):
        draw(axes, memory, title)
    panels[-1].set_xlabel("time before the present")
    legend_below(figure, panels[0], columns=1)
    save(figure, path)


def draw(axes, memory, title):
    positions, density = memory["positions"], memory["density"]
    # Some densities are infinite at an end; their height is not to scale.
    height = np.minimum(density / np.quantile(density, 0.98), 1) - 2
    axes.fill_between(
        positions, -2, height, color="0.9", label="measure, not to scale"
    )
    axes.plot(
        positions, memory["past"], color="0.55", linewidth=3, label="signal"
    )
    axes.plot(
        positions,
        memory["remembered"],
        color="tab:blue",
        label="remembered by the final state",
    )
    axes.set_title(title, fontsize="medium")
    axes.set_yticks([])
    axes.set_xlim(positions[-1], positions[0])
    axes.set_ylim(-2, 2)


if __name__ == "__main__":
    main()
