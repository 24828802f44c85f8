"""Train a model on sequences whose steps are shared among devices.

Each sequence is silent but for two numbers at random steps, and their sum is
wanted at its end. No device has a whole sequence: of 2,048 steps and eight
devices, each has 256. Of every linear recurrence each runs its part, and one
state a part travels between them.

    pip install "keras-linrec[jax]"
    python examples/sequence_parallel.py

Where there is one CPU, it acts as eight, which shows that the numbers are the
same and not that it is fast: the losses are printed next to those of one
device, and the largest difference. `--devices 4` takes another number.
"""

import argparse
import os
import time

from common import add_numbers

os.environ["KERAS_BACKEND"] = "jax"


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("devices", int, 8, "how many share the time"),
        ("steps", int, 2048, "of a sequence"),
        ("batch-size", int, 16, "sequences in a batch"),
        ("batches", int, 60, "training steps"),
        ("seed", int, 0, "of weights and data"),
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Before JAX looks for devices.
    flag = f"--xla_force_host_platform_device_count={parse().devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

import keras
import numpy as np

import keras_linrec
from keras_linrec.layers import RotRNN


class SharedTime(keras.distribution.ModelParallel):
    """Steps of the data among the devices, and all weights on each."""

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
        shared, seconds = train(options)
    print("\n| batch | loss, one device | loss, time shared |")
    print("|---|---|---|")
    every = max(len(one) // 8, 1)
    for batch in range(every - 1, len(one), every):
        print(f"| {batch + 1} | {one[batch]:.6f} | {shared[batch]:.6f} |")
    difference = float(np.abs(np.subtract(one, shared)).max())
    print(f"\nLargest difference: {difference:.1e}.")
    print(f"Seconds with compilation: {seconds_of_one:.0f}, {seconds:.0f}.")
    return one, shared


def train(options):
    """The loss of each batch, and how long they took."""
    keras.utils.set_random_seed(options.seed)
    model = build_model(options.steps)
    model.compile(keras.optimizers.Adam(5e-3), "mse")
    generator = np.random.default_rng(options.seed)
    losses, begin = [], time.perf_counter()
    for _ in range(options.batches):
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


if __name__ == "__main__":
    main()
