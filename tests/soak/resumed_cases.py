"""A training that is killed and resumed ends as one that is not."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from support.drawn_layers import FEATURES
from support.drawn_layers import count

from soak.drawn_models import draw_model
from soak.report import OutOfRange
from soak.settings import number

EPOCHS, BATCHES, TIME = 3, 3, 7
TESTS = Path(__file__).parent.parent


class Training:
    """The training of a random model, the same one for the same case."""

    def __init__(self, case):
        generator = np.random.default_rng([case, 1])
        keras.utils.set_random_seed(case)
        self.drawn = draw_model(generator)
        self.kill_at = count(generator, 1, EPOCHS * BATCHES)
        self.model = self.drawn.make("float32")
        shape = 2 * BATCHES, TIME, FEATURES
        self.inputs = generator.standard_normal(shape).astype("float32")

    def __str__(self):
        return f"{self.drawn}\nkilled after batch {self.kill_at}"

    def run(self, *callbacks):
        targets = np.ones(self.model.compute_output_shape(self.inputs.shape))
        self.model.compile(
            keras.optimizers.Adam(1e-3), "mse", jit_compile=False
        )
        self.model.fit(
            self.inputs,
            targets.astype("float32"),
            batch_size=2,
            epochs=EPOCHS,
            shuffle=False,
            callbacks=list(callbacks),
            verbose=0,
        )
        return [number(weight) for weight in self.model.weights]


class Kill(keras.callbacks.Callback):
    """Ends the process after a number of batches, without a warning."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def run(generator, report):
    """Draw a training, and kill and resume it in processes of its own."""
    case = int(generator.integers(2**31))
    training = Training(case)
    report.describe(training)
    expected = training.run()
    if not all(np.isfinite(part).all() for part in expected):
        raise OutOfRange("the training diverges")
    with tempfile.TemporaryDirectory() as folder:
        first = in_child(case, folder, "--kill")
        report.require(
            "killed",
            first.returncode == -signal.SIGKILL,
            f"it ended with {first.returncode}: {first.stderr[-2000:]}",
        )
        second = in_child(case, folder)
        report.require("resumed", second.returncode == 0, second.stderr[-2000:])
        with np.load(Path(folder) / "weights.npz") as file:
            got = [file[name] for name in file.files]
    for one, other in zip(got, expected, strict=True):
        close = np.allclose(one, other, rtol=1e-4, atol=1e-6)
        report.require("resumed", close, "it ends with other weights")


def in_child(case, folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "soak.resumed_cases", str(case), folder]
        + list(options),
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=600,
    )


def main(case, folder, *options):
    training = Training(int(case))
    backup = keras.callbacks.BackupAndRestore(Path(folder) / "backup")
    callbacks = [backup]
    if options:
        callbacks.append(Kill(training.kill_at))
    weights = training.run(*callbacks)
    np.savez(Path(folder) / "weights.npz", *weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
