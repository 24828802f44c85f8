"""Train a model with its sequences sharded along time over several devices.

Each sequence is zero except for two numbers at random steps, and the target is
their sum. No device holds a whole sequence: with 2,048 steps and eight devices,
each holds 256. Each device runs its part of every linear recurrence, and one
state per part travels between devices.

    pip install ".[examples,jax]"
    python examples/sequence_parallel.py

A single CPU acts as eight devices, which demonstrates correctness and not
speed: the script prints the losses next to those of one device, and the largest
difference, which `--output DIR` plots. `--devices 4` chooses another number of
devices.
"""

import argparse
import os
import time

from common import add_numbers
from common import add_plot
from common import save_plot

os.environ["KERAS_BACKEND"] = "jax"


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("devices", int, 8, "devices to shard over"),
        ("steps", int, 2048, "time steps of a sequence"),
        ("batch-size", int, 16, "sequences per training step"),
        ("iterations", int, 60, "training steps"),
        ("seed", int, 0, "seed of sequences and weights"),
    )
    add_plot(parser, "the losses and their difference")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # This must precede JAX's initialisation of devices.
    flag = f"--xla_force_host_platform_device_count={parse().devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

import keras
import numpy as np

import keras_linrec
from keras_linrec.layers import RotRNN


class SharedTime(keras.distribution.ModelParallel):
    """Shards data along time; replicates weights."""

    def __init__(self, mesh):
        layouts = keras.distribution.LayoutMap(mesh)
        super().__init__(layout_map=layouts, batch_dim_name="batch")

    def get_data_layout(self, data_shape):
        # Sequences are (batch, time, features), labels (batch,).
        axes = ["batch", "time", None] if len(data_shape) == 3 else ["batch"]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def main(arguments=None):
    options = parse(arguments)
    devices = keras.distribution.list_devices()[: options.devices]
    mesh = keras.distribution.DeviceMesh(
        (1, len(devices)), ["batch", "time"], devices
    )
    print(f"{options.steps} steps on {len(devices)} devices and on one.")
    one, seconds_of_one = train(options)
    scope = keras_linrec.config.sequence_parallel(mesh, batch_axis="batch")
    with SharedTime(mesh).scope(), scope:
        sharded, seconds = train(options)
    print("\n| batch | loss, one device | loss, sharded |")
    print("|---|---|---|")
    every = max(len(one) // 8, 1)
    for batch in range(every - 1, len(one), every):
        print(f"| {batch + 1} | {one[batch]:.6f} | {sharded[batch]:.6f} |")
    difference = float(np.abs(np.subtract(one, sharded)).max())
    print(f"\nLargest difference: {difference:.1e}.")
    print(
        f"Seconds, including compilation: {seconds_of_one:.0f}, {seconds:.0f}."
    )
    if options.output:
        plot(one, sharded, options)
    return one, sharded


def train(options):
    """The loss of each batch, and the total time in seconds."""
    keras.utils.set_random_seed(options.seed)
    model = build_model(options.steps)
    model.compile(keras.optimizers.Adam(5e-3), "mse")
    generator = np.random.default_rng(options.seed)
    losses, begin = [], time.perf_counter()
    for _ in range(options.iterations):
        losses.append(float(model.train_on_batch(*batch(options, generator))))
    return losses, time.perf_counter() - begin


def build_model(steps):
    # Memories as long as the sequences.
    slow = {"gamma_min": 0.9, "gamma_max": 1 - 0.1 / steps, "theta_max": 0.001}
    return keras.Sequential(
        [
            keras.Input((steps, 1)),
            RotRNN(16, 16, num_heads=8, **slow),
            keras.layers.Dense(16, "gelu"),
            RotRNN(16, 16, num_heads=8, return_sequences=False, **slow),
            keras.layers.Dense(1),
        ]
    )


def batch(options, generator):
    """Two numbers at random steps, and their sum."""
    count = options.batch_size
    sequences = np.zeros((count, options.steps, 1), "float32")
    for row in sequences:
        row[generator.choice(options.steps, 2, replace=False)] = (
            generator.standard_normal((2, 1))
        )
    return sequences, sequences.sum(axis=1)


def plot(one, sharded, options):
    from pictures import new_figure

    figure, (losses, differences) = new_figure(2, height=2.6, sharex=True)
    losses.semilogy(one, lw=4, color="0.7", label="one device")
    losses.semilogy(sharded, label=f"{options.devices} devices")
    losses.set_ylabel("mean squared error")
    losses.legend()
    difference = np.abs(np.subtract(one, sharded))
    differences.semilogy(difference, ".", color="C1")
    differences.set_ylabel("difference of the losses")
    differences.set_xlabel("iteration")
    save_plot(figure, options, "sequence_parallel.png")


if __name__ == "__main__":
    main()
