"""The worker of `test_sharded_units`: units on four devices, as JSON.

python -m support.sharded_units_worker NAME...
"""

import json
import os
import re
import sys
from contextlib import nullcontext

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=4"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from support.units import UNITS
from support.units import randomise
from support.units import sequences

from keras_linrec import config
from keras_linrec import kernels

# No other axis is as long as one of rows, whole or on a device.
BATCH, TIME = 52, 12
WHOLE, ROWS = PartitionSpec(), PartitionSpec("rows")
MESH = Mesh(np.array(jax.devices()), ("rows",))
TWO_AXES = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "model"))
MOVES = r" (?:all-gather|all-to-all|collective-permute)(?:-start)?\("


def results_of(name):
    """What one unit does, by the way in which devices share it."""
    unit = UNITS[name]
    layer = unit(return_state=True)
    inputs = sequences(TIME, batch=BATCH)
    layer.build(inputs.shape)
    randomise(layer)
    weights, fixed = (
        [np.asarray(variable.value) for variable in variables]
        for variables in (
            layer.trainable_variables,
            layer.non_trainable_variables,
        )
    )

    def loss(weights, inputs):
        # One call with all that a call may take, and one with nothing.
        options = {"mask": jnp.cumsum(inputs[:, :, 0], 1) < 2}
        if unit.takes_time_deltas:
            options["time_deltas"] = 1 + jnp.abs(inputs[:, :, 1])
        calls = [
            layer.stateless_call(weights, fixed, inputs, **given)[0]
            for given in ({}, options)
        ]
        total = sum(jnp.sum(part**2) for part in jax.tree.leaves(calls))
        return total / BATCH, calls

    run = jax.grad(loss, (0, 1), has_aux=True)
    expected = jax.jit(run)(weights, inputs)
    with config.portable_kernels():
        # Gradients of what makes no difference are rounding alone.
        portable = jax.jit(run)(weights, inputs)
    return {
        "shard_map": mapped(run, weights, inputs, expected),
        "shard_map, portable": mapped(
            run, weights, inputs, portable, config.portable_kernels()
        ),
        "batch": sharded(run, weights, inputs, expected, MESH),
        "batch and weights": sharded(run, weights, inputs, expected, TWO_AXES),
    }


def mapped(run, weights, inputs, expected, scope=None):
    """Within `jax.shard_map`, with its checks, and weights of all devices."""
    places = (WHOLE, ROWS), ROWS
    program = jax.shard_map(
        run, mesh=MESH, in_specs=(WHOLE, ROWS), out_specs=places
    )
    with scope or nullcontext():
        return found(jax.jit(program), (weights, inputs), expected)


def sharded(run, weights, inputs, expected, mesh):
    """As XLA shares the program over the devices of a mesh."""
    place = NamedSharding(mesh, ROWS)
    weights = [
        jax.device_put(weight, NamedSharding(mesh, spec_of(weight, mesh)))
        for weight in weights
    ]
    inputs = jax.device_put(inputs, place)
    return found(jax.jit(run), (weights, inputs), expected)


def spec_of(weight, mesh):
    """The last axis that two devices can share."""
    even = [axis for axis, size in enumerate(weight.shape) if not size % 2]
    if "model" not in mesh.axis_names or not even or not weight.size:
        return WHOLE
    return PartitionSpec(*[None] * even[-1], "model")


def found(program, arguments, expected):
    compiled = program.lower(*arguments).compile()
    text = compiled.as_text()
    moved = [line for line in text.splitlines() if re.search(MOVES, line)]
    return {
        "error": error(compiled(*arguments), expected),
        "native": sorted(set(re.findall(r'"(keras_linrec_\w+)"', text))),
        "moves": len(moved),
        # The result of a move stands first in its line.
        "gathers of the batch": [
            line
            for line in moved
            if re.search(rf"[\[,]{BATCH}[,\]]", line.split("(")[0])
        ],
    }


def error(got, expected):
    """The largest error, as a share of the largest value of each kind."""
    kinds = [
        [np.asarray(leaf) for leaf in jax.tree.leaves(part)]
        for results in (got, expected)
        for part in (results[0][0], results[0][1], results[1])
    ]
    return float(
        np.max(
            [
                max(np.abs(a - b).max(initial=0) for a, b in zip(one, other))
                / max(np.abs(b).max(initial=0) for b in other)
                for one, other in zip(kinds[:3], kinds[3:])
            ]
        )
    )


if __name__ == "__main__":
    units = {name: results_of(name) for name in sys.argv[1:]}
    native = vars(kernels.available()["native"])
    print(json.dumps({"native": native, "units": units}))
