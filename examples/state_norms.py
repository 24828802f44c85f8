"""Plot the norms of hidden states during training: RotRNN beside LRU.

Deep models of both units read handwritten digits one pixel at a time. Every
few training steps the norm of each layer's hidden state is measured on test
images that stay the same, at several times of the sequence, and averaged. This
is figure 3 of Biegun et al. 2024, on another task:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/state_norms.py --output norms

Nothing is downloaded: scikit-learn brings the 8x8 digits. MNIST's 28x28 images
are 784 steps, and the paper's models have six layers:

    python examples/state_norms.py --data ~/.keras/datasets/mnist.npz \
        --layers 6 --units 128 --state-size 128 --iterations 4000

RotRNN divides B by its norm throughout training: for white noise the expected
squared norm of its state is the number of heads. LRU is normalised at the start
only.
"""

import argparse
import csv

import numpy as np
from common import BACKENDS
from common import add_numbers
from common import add_output
from common import cosine_schedule
from common import make_folder
from common import prepare_backend
from common import require_whole
from digits import add_data
from digits import compile_model
from digits import first
from digits import read_task
from pictures import FAINT
from pictures import legend_below
from pictures import new_figure
from pictures import save

prepare_backend()

import keras

from keras_linrec.models import SequenceClassifier

UNITS = {"RotRNN": "rotrnn", "LRU": "lru"}
PLOT_FILE = "state_norms.png"
TABLE_FILE = "state_norms.csv"
# Images on which states are measured, and times of the sequence.
MEASURED_ON = 64
TIMES = 8


def main(arguments=None):
    options = parse(arguments)
    train, (images, _), classes = read_task(options.data, "pixels")
    train = first(options.train_size, train, "--train-size", "training")
    make_folder(options.output)
    curves = {}
    for name, unit in UNITS.items():
        curves[name] = np.array(
            [
                measured(options, unit, seed, train, images, classes)
                for seed in range(options.seeds)
            ]
        )
        report(name, curves[name])
    iterations = np.arange(curves["LRU"].shape[1]) * options.interval
    write(iterations, curves, options.output / TABLE_FILE)
    plot(iterations, curves, options.output / PLOT_FILE)
    print(f"Wrote {TABLE_FILE} and {PLOT_FILE} to {options.output.resolve()}.")
    return curves


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=BACKENDS
    )
    add_data(parser)
    add_numbers(
        parser,
        ("layers", int, 3, "of each model"),
        ("units", int, 32, "features between the layers"),
        ("state-size", int, 64, "states of a RotRNN, half as many of an LRU"),
        ("iterations", int, 400, "training steps"),
        ("interval", int, 20, "training steps between two measurements"),
        ("seeds", int, 3, "models of each unit, which start differently"),
        ("batch-size", int, 32, "images a training step"),
        ("learning-rate", float, 4e-3, "the highest, of AdamW"),
        ("train-size", int, None, "the first so many training images (all)"),
    )
    add_output(parser, f"{PLOT_FILE} and {TABLE_FILE}")
    options = parser.parse_args(arguments)
    require_whole(parser, options, "state_size", least=4)
    return options


def measured(options, unit, seed, train, images, classes):
    """The norms of a model in training, (measurements, layers)."""
    keras.utils.set_random_seed(seed)
    model = build_model(options, unit, classes)
    model.build((None, *images.shape[1:]))
    rate = cosine_schedule(options.learning_rate, options.iterations)
    compile_model(
        model, keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)
    )
    watch = NormWatch(images[:MEASURED_ON], options.interval)
    generator = np.random.default_rng(seed)
    model.fit(
        batches(*train, options.batch_size, generator),
        shuffle=False,
        steps_per_epoch=options.iterations,
        callbacks=[watch],
        verbose=0,
    )
    return watch.norms


def build_model(options, unit, classes):
    # The states of an LRU are complex: half as many hold as many numbers.
    size = options.state_size // (2 if unit == "lru" else 1)
    return SequenceClassifier(
        classes,
        num_layers=options.layers,
        units=options.units,
        unit=unit,
        unit_arguments={"state_size": size},
    )


def batches(images, labels, size, generator):
    """Random batches without end."""
    while True:
        rows = generator.integers(len(images), size=size)
        yield images[rows], labels[rows]


class NormWatch(keras.callbacks.Callback):
    """Measures state norms before training and every `interval` steps."""

    def __init__(self, images, interval):
        super().__init__()
        self.images = images
        self.interval = interval
        self.norms = []

    def on_train_begin(self, logs=None):
        self.norms.append(state_norms(self.model, self.images))

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.interval == 0:
            self.norms.append(state_norms(self.model, self.images))


def state_norms(model, sequences, mask=None):
    """The mean norm of each layer's state, at the ends of equal parts.

    Args:
        model: a `SequenceClassifier`.
        sequences: (batch, time, features).
        mask: (batch, time), or `None`.
    """
    length = -(-sequences.shape[1] // TIMES)
    states = model.get_initial_state(len(sequences))
    norms = []
    for start in range(0, sequences.shape[1], length):
        part = slice(start, start + length)
        _, states = model.call_with_states(
            sequences[:, part],
            states,
            mask=None if mask is None else mask[:, part],
        )
        # After those of the layers come those of the pooling.
        norms.append([norm(layer) for layer in states[: model.num_layers]])
    return np.mean(norms, axis=0)


def norm(states):
    """The mean norm of a state, whose parts are a list of tensors."""
    parts = [keras.ops.convert_to_numpy(part) for part in states]
    return np.linalg.norm(np.concatenate(parts, axis=-1), axis=-1).mean()


def report(name, norms):
    """What became of the norms of each layer, over all seeds."""
    for layer, curve in enumerate(np.moveaxis(norms, -1, 0), start=1):
        print(
            f"{name}, layer {layer}: {curve[:, 0].mean():.3g} at the start, "
            f"{curve[:, -1].mean():.3g} at the end, "
            f"from {curve.min():.3g} to {curve.max():.3g} in between"
        )


def write(iterations, curves, path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["unit", "seed", "layer", "iteration", "norm"])
        for name, norms in curves.items():
            for (seed, index, layer), value in np.ndenumerate(norms):
                writer.writerow(
                    [name, seed, layer + 1, iterations[index], f"{value:.6g}"]
                )


def plot(iterations, curves, path):
    """The mean of the seeds for each layer, and the range that they cover."""
    figure, panels = new_figure(
        len(curves), height=2.6, sharex=True, sharey=True
    )
    for axes, (name, norms) in zip(panels, curves.items()):
        for layer, curve in enumerate(np.moveaxis(norms, -1, 0), start=1):
            (line,) = axes.plot(
                iterations, curve.mean(axis=0), ".-", label=f"layer {layer}"
            )
            axes.fill_between(
                iterations,
                curve.min(axis=0),
                curve.max(axis=0),
                color=line.get_color(),
                **FAINT,
            )
        axes.set_title(name)
        axes.set_ylabel("mean norm of state")
    # Not before: a limit that is set ends the scaling of both panels.
    panels[0].set_ylim(bottom=0)
    panels[-1].set_xlabel("training steps")
    legend_below(figure, panels[0], columns=3)
    save(figure, path)


if __name__ == "__main__":
    main()
