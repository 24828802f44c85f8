"""How long a training step takes as sequences grow, beside LSTM and GRU.

    KERAS_BACKEND=jax python benchmarks/lengths.py

times a training step (forward, backward, a step of gradient descent) of one
layer, for sequences from a hundred steps to `--longest`. The peers are Keras'
layers and, on PyTorch, its own. All layers take turns in one process. A layer
is left out of longer sequences once a step has taken `--patience` seconds.
Prints a table, and writes it to `--output` as a JSON file, with a plot of the
same name beside it; `--plot-only` draws the plot anew from the file.
"""

import argparse
import json
import platform
from functools import partial
from pathlib import Path

import keras
import numpy as np
from common import framework_layers
from common import framework_step
from common import interleaved
from common import keras_layer
from common import parsed_options
from common import print_header
from common import print_row
from common import training_step
from keras import ops
from paths import UNITS

PEERS = ("LSTM", "GRU")
OURS = ("LSSL", "RotRNN", "LipschitzRNN")
SHORTEST = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--longest", type=int, default=100_000)
    parser.add_argument("--patience", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--units", nargs="+", default=[*OURS, *PEERS, *framework_layers()]
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--plot-only", action="store_true")
    options = parsed_options(parser)
    if options.plot_only:
        plot(json.loads(options.output.read_text()), options.output)
        return
    result = measure(options)
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
        plot(result, options.output)


def measure(options):
    lengths = []
    times = {unit: [] for unit in options.units}
    print_header("steps", *(f"{unit}, ms" for unit in options.units))
    for steps in between(SHORTEST, options.longest):
        calls = {
            unit: step_of(unit, options, steps)
            for unit in options.units
            if None not in times[unit]
            and max(times[unit], default=0) < 1e3 * options.patience
        }
        medians = interleaved(calls, options.rounds)
        lengths.append(steps)
        for unit in options.units:
            times[unit].append(medians.get(unit))
        cells = [times[unit][-1] for unit in options.units]
        row = ["" if cell is None else f"{cell:.1f}" for cell in cells]
        print_row(f"{steps:,}", *row)
    return {
        "backend": keras.backend.backend(),
        "machine": platform.machine(),
        "batch": options.batch,
        "features": options.features,
        "steps": lengths,
        "milliseconds": times,
    }


def between(shortest, longest):
    """1, 3, 10, 30 times the shortest length, up to the longest."""
    steps = shortest
    while steps <= longest:
        yield steps
        steps = steps * 3 if str(steps)[0] == "1" else steps // 3 * 10


def step_of(unit, options, steps):
    """A function that trains a new layer for one step; called once."""
    keras.utils.set_random_seed(0)
    shape = options.batch, steps, options.features
    sequences = np.random.default_rng(0).standard_normal(shape)
    sequences = ops.convert_to_tensor(sequences.astype("float32"))
    if unit in framework_layers():
        step = framework_step(unit, sequences)
    else:
        peer = partial(keras_layer, unit, return_sequences=True)
        make = UNITS.get(unit, peer)
        step = training_step(make(options.features), sequences)
    # The first call compiles.
    step()
    return step


def plot(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 4), layout="constrained")
    for unit, milliseconds in result["milliseconds"].items():
        axis.loglog(
            result["steps"],
            [float("nan") if one is None else one for one in milliseconds],
            marker="o",
            linestyle="-" if unit in UNITS else "--",
            label=unit,
        )
    axis.set_xlabel("steps of a sequence")
    axis.set_ylabel("milliseconds of a training step")
    axis.set_title(
        f"{result['backend']}, batch {result['batch']}, "
        f"{result['features']} features",
        fontsize=10,
    )
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path.with_suffix(".png"), dpi=150)
    print(f"Wrote {path} and {path.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
