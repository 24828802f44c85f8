"""Trains layers as modules on a share of the rows; writes the weights.

    torchrun --nproc-per-node 2 layer_module_worker.py FILE

The processes share the gradients by DDP, then by FSDP2. Imported elsewhere, the
functions train on all rows.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from keras_linrec import layers
from keras_linrec import models
from keras_linrec.torch import LayerModule

RANK = int(os.environ.get("RANK", 0))
COUNT = int(os.environ.get("WORLD_SIZE", 1))
STEPS, ROWS, TIME, FEATURES = 4, 4, 12, 3
LAYERS = {
    "lru": lambda: layers.LRU(4, state_size=6),
    # Its sign is a single number.
    "orthogonal": lambda: layers.OrthogonalRNN(
        4, reflections=4, activation="tanh", return_sequences=True
    ),
    # It has a buffer.
    "lssl": lambda: layers.LSSL(4, state_size=4, stable_transition=True),
    "stateful": lambda: layers.RotRNN(4, state_size=6, stateful=True),
    "both": lambda: layers.Bidirectional(layers.MinGRU(4)),
    "model": lambda: models.SequenceRegressor(
        4, num_layers=2, units=4, unit="rglru", pooling=None
    ),
}


def network_of(name):
    keras.utils.set_random_seed(0)
    layer = LAYERS[name]()
    module = LayerModule(layer, FEATURES, batch_size=ROWS // COUNT)
    outputs = layer.compute_output_shape((ROWS, TIME, FEATURES))[-1]
    return torch.nn.Sequential(module, torch.nn.Linear(outputs, 2))


def replicated(network):
    # States belong to the rows of their process.
    has_states = getattr(network[0].keras_layer, "stateful", False)
    return DistributedDataParallel(network, broadcast_buffers=not has_states)


def sharded(network):
    for part in network:
        fully_shard(part)
    return fully_shard(network)


def trained(network):
    """The weights of a network after some steps, whole."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    rows = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        sequences = torch.rand(ROWS, TIME, FEATURES, generator=rows)
        outputs = network(sequences[RANK::COUNT])
        targets = sequences.cumsum(1)[RANK::COUNT, :, :2] / TIME
        optimizer.zero_grad()
        (outputs - targets).square().mean().backward()
        optimizer.step()
    return {
        name.removeprefix("module."): whole(value.detach())
        for name, value in network.named_parameters()
    }


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def train_all(file):
    kinds = {"ddp": replicated, "fsdp": sharded}
    results = {
        name: {
            kind: trained(wrap(network_of(name)))
            for kind, wrap in kinds.items()
        }
        for name in LAYERS
    }
    if RANK == 0:
        torch.save(results, file)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train_all(sys.argv[1])
    sys.stdout.flush()
    # Freeing a group may wait for its own thread for ever.
    os._exit(0)
