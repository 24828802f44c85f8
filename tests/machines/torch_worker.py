"""Trains on a share of the rows, from the last backup on; writes its losses.

    torchrun --nproc-per-node 2 torch_worker.py FOLDER [KILLED_AT]

Started by `torchrun`, whose processes share the gradients, or alone. Before the
step KILLED_AT, process 1 kills itself, but only the first time.
"""

import json
import os
import signal
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from keras_linrec import layers
from keras_linrec import saving

RANK = int(os.environ.get("RANK", 0))
COUNT = int(os.environ.get("WORLD_SIZE", 1))
STEPS, ROWS, TIME = 6, 4, 32


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((TIME, 3)),
            layers.RotRNN(8, state_size=8, num_heads=2),
            layers.OrthogonalRNN(6, reflections=3, return_sequences=True),
            keras.layers.Dense(2),
        ]
    )


def data(step):
    """The sequences and targets of a step, the rows of this process."""
    generator = np.random.default_rng(step)
    sequences = generator.standard_normal((ROWS, TIME, 3)).astype("float32")
    targets = np.cumsum(sequences[..., :2], axis=1) / TIME**0.5
    return [
        torch.from_numpy(array[RANK::COUNT]) for array in (sequences, targets)
    ]


def train(folder, killed_at):
    backup, progress = folder / "backup.weights.h5", folder / "losses.json"
    model = build()
    losses = []
    if progress.exists():
        losses = json.loads(progress.read_text())
        saving.load_weights(model, backup)
    network = model if COUNT == 1 else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    started = len(losses)
    for step in range(started, STEPS):
        if step == killed_at and RANK == 1 and not started:
            os.kill(os.getpid(), signal.SIGKILL)
        sequences, targets = data(step)
        optimizer.zero_grad()
        loss = torch.mean((network(sequences) - targets) ** 2)
        loss.backward()
        optimizer.step()
        losses.append(mean(loss.detach()))
        if RANK == 0:
            saving.save_weights(model, backup)
            progress.write_text(json.dumps(losses))
        if COUNT > 1:
            distributed.barrier()
    if RANK == 0:
        result = {"losses": losses, "started": started}
        (folder / "result.json").write_text(json.dumps(result))


def mean(loss):
    if COUNT > 1:
        distributed.all_reduce(loss)
    return float(loss) / COUNT


if __name__ == "__main__":
    if COUNT > 1:
        distributed.init_process_group("gloo")
    train(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
    sys.stdout.flush()
    # Freeing a group may wait for its own thread for ever.
    os._exit(0)
