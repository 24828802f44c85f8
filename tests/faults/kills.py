"""SIGKILL at random moments of saving and of training with backups."""

import hashlib
import random
import signal
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from faults.forks import Child
from keras_linrec import saving
from keras_linrec.layers import RotRNN

# The longest that a process lives, in seconds: a few saves, or epochs.
LIFE = 0.4


def model():
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            RotRNN(64, state_size=64, num_heads=2),
            RotRNN(4, state_size=64, num_heads=2),
        ]
    )


def saves(tries, seed, keras_only=False):
    """Kill processes that save one file again and again.

    Each save writes weights that all equal its number.

    Returns:
        The kills after which the file was whole and had no less than the
        number of the last save that had ended, and all kills.
    """
    draw = random.Random(seed)
    save = keras.saving.save_model if keras_only else saving.save_model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        written, survived = model(), 0
        set_all(written, 0)
        save(written, path)
        for _ in range(tries):
            try:
                before = number_in(path)
            except Exception:
                before = 0
                save(written, path)

            def work(report, before=before):
                for number in range(before + 1, before + 10**6):
                    set_all(written, number)
                    save(written, path)
                    report(number)

            code, lines = Child(work).end(draw.uniform(0, LIFE))
            assert code == -signal.SIGKILL, lines
            last = int(lines[-1]) if lines else before
            try:
                survived += number_in(path) in (last, last + 1)
            except Exception as failure:
                print(f"  {type(failure).__name__}: {failure}"[:150])
        # What the last one left is removed by a save that ends.
        save(written, path)
        assert [path.name] == [found.name for found in path.parent.iterdir()]
    return survived, tries


def set_all(written, number):
    for weight in written.weights:
        weight.assign(np.full(weight.shape, number, "float32"))


def number_in(path):
    """The number that all weights of a file are."""
    loaded = saving.load_model(path)
    numbers = {float(n) for w in loaded.get_weights() for n in np.unique(w)}
    (number,) = numbers
    return int(number)


class Reporter(keras.callbacks.Callback):
    """Reports each epoch, once it is backed up, with a digest of the model."""

    def __init__(self, report):
        super().__init__()
        self.report = report

    def on_epoch_begin(self, epoch, logs=None):
        # What was restored is what the same epoch had left before.
        self.tell(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.tell(epoch + 1)

    def tell(self, epoch):
        digest = hashlib.sha256()
        for variable in [*self.model.weights, *self.model.optimizer.variables]:
            digest.update(keras.ops.convert_to_numpy(variable).tobytes())
        self.report(f"{epoch} {digest.hexdigest()[:16]}")


def trainings(tries, seed, keras_only=False):
    """Kill a training that backs up every epoch, and start it again.

    Returns:
        The kills after which the training went on from the last backup with
        the same bits, and all kills.
    """
    draw = random.Random(seed)
    callback = saving.BackupAndRestore
    if keras_only:
        callback = keras.callbacks.BackupAndRestore
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((2, 4, 3)).astype("float32")
    targets = generator.standard_normal((2, 4, 4)).astype("float32")
    survived, digests, last = 0, {}, 0
    trained = model()
    trained.compile("adam", "mse")
    # What the first training imports and compiles, the forks have then.
    start = trained.get_weights()
    trained.fit(inputs, targets, verbose=0)
    begin = time.perf_counter()
    trained.fit(inputs, targets, verbose=0)
    # Long enough for some epochs, on a machine that is busy too.
    longest = max(LIFE, 4 * (time.perf_counter() - begin))
    trained.set_weights(start)
    for variable in trained.optimizer.variables:
        if "learning_rate" not in variable.path:
            variable.assign(keras.ops.zeros_like(variable))
    with tempfile.TemporaryDirectory() as folder:

        def work(report):
            trained.fit(
                inputs,
                targets,
                epochs=10**6,
                shuffle=False,
                verbose=0,
                callbacks=[callback(f"{folder}/backup"), Reporter(report)],
            )

        for attempt in range(tries + 1):
            # The last one shows what the last kill left.
            life = draw.uniform(0, longest) if attempt < tries else 5 * longest
            code, lines = Child(work).end(life)
            told = [line.split() for line in lines]
            if code != -signal.SIGKILL:
                print(f"  the restart failed: {lines[-1][:150]}")
                survived -= 1
                digests, last = {}, 0
                for path in Path(folder, "backup").iterdir():
                    path.unlink()
                continue
            if not told:
                continue
            good = int(told[0][0]) >= last and all(
                digests.setdefault(epoch, digest) == digest
                for epoch, digest in told
            )
            if not good:
                print(f"  epoch {told[0][0]} after {last}, or other weights")
                survived -= 1
                digests = dict(told)
            last = int(told[-1][0])
    assert last, "no process lived for an epoch"
    return survived + tries, tries
