"""Shared parts of the examples of `docs/guides/tasks/`.

Each of these examples trains a model and an LSTM with several seeds, writes the
figures to `NAME.json`, and draws `NAME.png` from that file.
"""

import argparse
import json
import time
from pathlib import Path
from textwrap import fill

import numpy as np
from common import BACKENDS
from common import add_numbers
from common import add_output
from common import lstm as keras_lstm
from common import make_folder
from common import refuse
from pictures import FAINT
from pictures import new_figure
from pictures import save

# Functions import Keras themselves, after a backend has been chosen.

# Those that are tried for each model, once.
LEARNING_RATES = (1e-3, 3e-3, 1e-2)


def run(name, description, measure, sizes, arguments=None):
    """Measure, or read what was measured, and draw it.

    Args:
        name: of the files.
        description: the script's docstring.
        measure: function of the options that returns what `Record.result`
            returns, and more if the plot needs it.
        sizes: the numeric options besides --seeds, as `add_numbers` takes
            them.
        arguments: of the command line. Defaults to `None`, those of the
            process.
    """
    import keras

    options = _parse(name, description, sizes, arguments)
    make_folder(options.output)
    path = options.output / f"{name}.json"
    if not options.plot_only:
        chosen = {
            key: value
            for key, value in vars(options).items()
            if not isinstance(value, (Path, bool))
        }
        result = {
            "backend": keras.backend.backend(),
            "options": chosen,
            **measure(options),
        }
        path.write_text(json.dumps(rounded(result), indent=1) + "\n")
        report(result)
    if not path.exists():
        refuse(path, "figures that an earlier run has written", "no such file")
    result = json.loads(path.read_text())
    draw(result, path.with_suffix(".png"))
    return result


def _parse(name, description, sizes, arguments):
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0], epilog=BACKENDS
    )
    add_numbers(
        parser, *sizes, ("seeds", int, 2, "of the data and the weights")
    )
    parser.add_argument(
        "--plot-only",
        action="store_true",
        help=f"draw from {name}.json again",
    )
    add_output(parser, f"{name}.json and {name}.png")
    return parser.parse_args(arguments)


def lstm(units, return_sequences=False):
    """The LSTM to compare with: PyTorch's own, where it can run."""
    if lstm_name() != "torch.nn.LSTM":
        return keras_lstm(units, return_sequences=return_sequences)
    from recipes.networks import TorchLSTM

    return TorchLSTM(units, return_sequences)


def lstm_name():
    """What `lstm` returns, as the tables and the plots call it."""
    import keras

    torch = keras.backend.backend() == "torch"
    return "torch.nn.LSTM" if torch else "keras.layers.LSTM"


class Record:
    """Curves, figures and times of several models and seeds.

    Args:
        quantity: what the curves show, the label of the plot's axis.
        scale: what Keras' values are multiplied by. Defaults to 1.
    """

    def __init__(self, quantity, scale=1.0):
        self.quantity = quantity
        self.scale = scale
        self.curves, self.figures, self.seconds = {}, {}, {}
        self.parameters = {}
        self.trials = {}

    def train(self, name, seed, build, fit, data, key, best=min):
        """Train a model, and keep its curve and times.

        The first call for a name tries `LEARNING_RATES`, and those after it
        take the rate that was best then.

        Args:
            name: of the model in the plot.
            seed: of the weights.
            build: function that returns a model.
            fit: function of a model, `data` and a learning rate that trains the
                model and returns what Keras' `fit` returns.
            data: tuple, the arguments of `fit` between these two.
            key: the history's entry to keep, and to choose the rate by: of
                validation data that give none of the figures.
            best: `min` or `max`. Defaults to `min`.

        Returns:
            The model.
        """
        first = name not in self.trials
        rates = LEARNING_RATES if first else [self._rate(name, best)]
        results = {}
        for rate in rates:
            model, history, seconds = _trained(seed, build, fit, data, rate)
            curve = [self.scale * value for value in history.history[key]]
            results[rate] = model, curve, seconds
        if first:
            self.trials[name] = {
                rate: curve[-1] for rate, (_, curve, _) in results.items()
            }
        model, curve, seconds = results[self._rate(name, best)]
        self.curves.setdefault(name, []).append(curve)
        self.seconds.setdefault(name, []).append(seconds)
        self.parameters[name] = model.count_params()
        return model

    def _rate(self, name, best):
        # A loss that is not a number is no candidate.
        trials = {
            rate: last
            for rate, last in self.trials[name].items()
            if np.isfinite(last)
        }
        return best(trials, key=trials.get)

    def figure(self, name, **values):
        """Keep the final figures of one seed."""
        for key, value in values.items():
            figures = self.figures.setdefault(name, {})
            figures.setdefault(key, []).append(float(value))

    def result(self):
        return {
            "quantity": self.quantity,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "trials": self.trials,
            "curves": self.curves,
            "figures": self.figures,
        }


def _trained(seed, build, fit, data, rate):
    import keras

    keras.utils.set_random_seed(seed)
    model = build()
    started = time.perf_counter(), time.process_time()
    history = fit(model, *data, rate)
    seconds = {
        "wall": time.perf_counter() - started[0],
        "cpu": time.process_time() - started[1],
    }
    return model, history, seconds


def median_row(errors):
    """The row whose error is the median: an example that is typical."""
    return int(np.argsort(errors)[len(errors) // 2])


def rounded(value):
    """Numbers to four digits, in dictionaries and lists of any depth."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.4g}")
    return value


def report(result):
    """Print a table of the figures: the mean over the seeds, and the range."""
    keys = list(
        dict.fromkeys(k for named in result["figures"].values() for k in named)
    )
    print(f"| | {' | '.join(keys)} | parameters | CPU seconds |")
    print("|---" * (len(keys) + 3) + "|")
    for name, figures in result["figures"].items():
        cells = [_cell(figures.get(key)) for key in keys]
        cells.append(str(result["parameters"].get(name, "")))
        seconds = [taken["cpu"] for taken in result["seconds"].get(name, ())]
        cells.append(f"{np.mean(seconds):.0f}" if seconds else "")
        print(f"| {name} | {' | '.join(cells)} |")


def _cell(values):
    if values is None:
        return ""
    mean = f"{np.mean(values):.3g}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.3g} to {max(values):.3g})"


def draw(result, path):
    """Plot the example, if there is one, and below it the curves.

    An example has `lines`, a dictionary of label and values, and may have
    `band`, two lists, `marked`, a list of (first, last) steps, and `begin`, the
    first step of each line that does not begin at step 0. Lines in multiples of
    a threshold have a panel of their own, and the steps of a line that is not
    everywhere are shaded.
    """
    example = result.get("example")
    lines = {} if example is None else example["lines"]
    scores = {name: lines[name] for name in lines if "threshold" in name}
    others = {name: lines[name] for name in lines if name not in scores}
    groups = [group for group in (others, scores) if group]
    figure, panels = new_figure(len(groups) + 1, height=2.4)
    for axes, group in zip(panels, groups):
        _draw_example(axes, {**example, "lines": group})
        if group is scores:
            axes.axhline(1, linestyle="--", color="0.4", label="threshold")
            _name_above(axes)
    if groups:
        panels[len(groups) - 1].set_xlabel(example["unit"])
    _draw_curves(panels[-1], result)
    save(figure, path)


def _draw_curves(axes, result):
    for index, (name, runs) in enumerate(result["curves"].items()):
        epochs = np.arange(1, len(runs[0]) + 1)
        color = f"C{index}"
        means = np.mean(runs, axis=0)
        axes.plot(epochs, means, color, marker=".", label=name)
        low, high = np.min(runs, axis=0), np.max(runs, axis=0)
        axes.fill_between(epochs, low, high, color=color, **FAINT)
    for name, level in result.get("levels", {}).items():
        axes.axhline(level, linestyle="--", color="0.4", label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    # Below each other, panels are too low for long words.
    axes.set_ylabel(fill(result["quantity"], 22))
    axes.legend(fontsize=8)


def _draw_example(axes, example):
    begin = example.get("begin", {})
    for index, (name, values) in enumerate(example["lines"].items()):
        values = np.array(values, "float64")
        steps = begin.get(name, 0) + np.arange(len(values))
        axes.plot(steps, values, f"C{index}", linewidth=1.3, label=name)
        for first, last in _stretches(~np.isnan(values)):
            if last - first + 1 < len(values):
                axes.axvspan(first - 0.5, last + 0.5, color="0.5", **FAINT)
    if begin:
        _draw_future(axes, example, min(begin.values()))
    if "band" in example:
        low, high = example["band"]
        steps = begin["band"] + np.arange(len(low))
        label = example["band_label"]
        axes.fill_between(steps, low, high, color="C1", label=label, **FAINT)
    for first, last in example.get("marked", ()):
        axes.axvspan(first, last, color="C3", label="fault", **FAINT)
    _name_above(axes)


def _name_above(axes):
    """Name the lines above the panel, where the names cover none."""
    axes.legend(
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        frameon=False,
    )


def _draw_future(axes, example, start):
    """A line where the model's answer starts, and the truth beyond it."""
    axes.axvline(start, color="0.4", linestyle="--")
    truth = list(example["lines"].values())[0]
    if len(truth) > start:
        steps = np.arange(start, len(truth))
        axes.plot(steps, truth[start:], "k", linewidth=1.3, label="the truth")


def _stretches(flags):
    """The first and the last step of each stretch of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]])))
    return [(first, end - 1) for first, end in edges.reshape(-1, 2)]
