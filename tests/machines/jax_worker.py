"""Trains a model whose time axis is shared by processes; prints its losses.

python jax_worker.py ADDRESS COUNT RANK
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

ADDRESS, COUNT, RANK = sys.argv[1], *map(int, sys.argv[2:])
if COUNT > 1:
    jax.distributed.initialize(ADDRESS, COUNT, RANK)

import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_linrec import config
from keras_linrec import layers

BATCH, TIME, FEATURES, STEPS = 2, 256, 3, 4


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((TIME, FEATURES)),
            layers.RotRNN(8, state_size=8, num_heads=2),
            layers.LRU(2, state_size=4),
        ]
    )
    return model


def data():
    generator = np.random.default_rng(0)
    sequences = generator.standard_normal((BATCH, TIME, FEATURES))
    targets = np.cumsum(sequences[..., :2], axis=1) / TIME**0.5
    return sequences.astype("float32"), targets.astype("float32")


def train(mesh):
    """The losses of a few steps of gradient descent."""
    model = build()
    others = [variable.value for variable in model.non_trainable_variables]

    def loss(weights, sequences, targets):
        outputs, _ = model.stateless_call(weights, others, sequences)
        return jnp.mean((outputs - targets) ** 2)

    @jax.jit
    def step(weights, sequences, targets):
        value, slopes = jax.value_and_grad(loss)(weights, sequences, targets)
        return value, [w - 0.02 * s for w, s in zip(weights, slopes)]

    place = NamedSharding(mesh, PartitionSpec(None, "time"))
    arrays = [share(array, place) for array in data()]
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights = [
        share(np.asarray(variable.value), everywhere)
        for variable in model.trainable_variables
    ]
    losses = []
    with config.sequence_parallel(mesh):
        for _ in range(STEPS):
            value, weights = step(weights, *arrays)
            losses.append(float(value))
    return losses


def share(array, place):
    """An array of all processes, of which each has its own part."""
    return jax.make_array_from_callback(
        array.shape, place, lambda part: array[part]
    )


if __name__ == "__main__":
    assert jax.process_count() == COUNT
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("time",))
    print(json.dumps(train(mesh)))
