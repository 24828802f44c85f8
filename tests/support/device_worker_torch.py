"""The PyTorch worker of `test_devices`: losses of one and two processes.

python -m support.device_worker_torch FOLDER [RANK]
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import torch
from support.device_model import BATCH
from support.device_model import LEARNING_RATE
from support.device_model import build
from support.device_model import data
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KEPT = []


def losses(network, sequences, targets):
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.mean((network(sequences) - targets) ** 2)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if distributed.is_initialized():
            distributed.all_reduce(loss)
            loss = loss / RANKS
        found.append(float(loss))
    return found


def share(rank):
    """The rows of one process."""
    rows = slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)
    return [torch.from_numpy(array[rows]) for array in data()]


def run(folder, rank):
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
    )
    # Each starts from different weights, and receives those of the first.
    network = DistributedDataParallel(build(seed=rank))
    found = losses(network, *share(rank))
    distributed.barrier()
    # Freeing a group may wait for its own thread for ever.
    KEPT.append(network)
    return found


def leave():
    """Exit without freeing anything."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if sys.argv[2:]:
        run(folder, int(sys.argv[2]))
        leave()
    other = subprocess.Popen([sys.executable, "-m", __spec__.name, folder, "1"])
    one = losses(build(), *map(torch.from_numpy, data()))
    two = run(folder, 0)
    assert other.wait() == 0
    print(json.dumps({"one": one, "data": two}))
    leave()
