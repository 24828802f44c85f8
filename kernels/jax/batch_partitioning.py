"""Calls that XLA may partition over devices by the rows of a batch.

XLA cannot look inside a foreign call. If a batch is sharded over several
devices, XLA would gather it on each of them, and each would compute all of it.
Here XLA is told that rows are independent.
"""

import math
from functools import partial

import jax
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec


def by_rows(call, arguments, results, has_rows):
    """The results of `call`, each device computing the rows that it holds.

    Args:
        call: takes a list of shapes and dtypes, and arrays, and returns a
            list of arrays of these shapes. A result without rows is a sum over
            the rows.
        arguments: list of arrays.
        results: list of the shapes and dtypes of the results.
        has_rows: one list for the arguments and one for the results: whether
            the first axis of each is the axis of rows.
    """
    whole = partial(call, results)
    if jax.device_count() == 1:
        return whole(*arguments)

    @custom_vmap
    def run(*arguments):
        return _partitioned(call, arguments, results, has_rows)

    @run.def_vmap
    def _(size, batched, *arguments):
        # An axis added by `jax.vmap` is gathered, as it would be by default.
        axes = [0 if axis else None for axis in batched]
        return jax.vmap(whole, axes)(*arguments), [True] * len(results)

    return run(*arguments)


def _partitioned(call, arguments, results, has_rows):
    takes_rows, gives_rows = has_rows

    def partition(mesh, arguments, results):
        mesh, axes = _axes_of_rows(mesh, arguments, takes_rows)

        def part(*arguments):
            # Here the first axis holds the rows of one device.
            shapes = [
                jax.ShapeDtypeStruct(place.shard_shape(r.shape), r.dtype)
                for place, r in zip(places(gives_rows), results)
            ]
            return [
                result if rows or axes is None else lax.psum(result, axes)
                for result, rows in zip(call(shapes, *arguments), gives_rows)
            ]

        def places(has_rows):
            return [
                NamedSharding(mesh, PartitionSpec(*[axes] * rows))
                for rows in has_rows
            ]

        return mesh, part, places(gives_rows), tuple(places(takes_rows))

    def infer_sharding_from_operands(mesh, arguments, results):
        return partition(mesh, arguments, results)[2]

    partitioned = custom_partitioning(
        lambda *arguments: call(results, *arguments)
    )
    partitioned.def_partition(
        partition,
        infer_sharding_from_operands,
        sharding_rule=_sharding_rule(arguments, results, has_rows),
    )
    return partitioned(*arguments)


def _axes_of_rows(mesh, arguments, has_rows):
    """A mesh, and the names of its axes that partition the rows, or `None`.

    XLA passes the sharding of an argument or none; in older versions of JAX it
    has no mesh with names. If the devices do not divide the rows, these are
    gathered, because padding would count in the sums over rows.
    """
    known = [
        (argument, has)
        for argument, has in zip(arguments, has_rows)
        if argument.sharding is not None
    ]
    for argument, has in known:
        place = argument.sharding
        if isinstance(place, NamedSharding):
            mesh = place.mesh
            if has and place.spec and _divides(place, argument.shape[0]):
                return mesh, place.spec[0]
        elif has:
            parts = _parts(place, argument.shape)
            if parts > 1:
                # Any devices will do: XLA needs their number only.
                return _mesh(place.device_set, parts), "rows"
    if mesh is None or mesh.empty:
        mesh = _mesh(known[0][0].sharding.device_set if known else (), 1)
    return mesh, None


def _divides(place, rows):
    axes = place.spec[0]
    if axes is None:
        return False
    axes = axes if isinstance(axes, tuple) else (axes,)
    return rows % math.prod(place.mesh.shape[axis] for axis in axes) == 0


def _parts(place, shape):
    """The number of shards of the rows; 1 if they are not of equal size."""
    try:
        return shape[0] // place.shard_shape(shape)[0]
    except ValueError:
        return 1


def _mesh(devices, parts):
    devices = np.array(sorted(devices, key=lambda d: d.id) or jax.devices())
    return Mesh(devices.reshape(parts, -1), ("rows", "others"))


def _sharding_rule(arguments, results, has_rows):
    """A rule such as "rows a0_1, a1_0 -> rows b0_1": only rows are sharded."""

    def names(arrays, has_rows, prefix):
        for index, (array, rows) in enumerate(zip(arrays, has_rows)):
            axes = [f"{prefix}{index}_{axis}" for axis in range(array.ndim)]
            yield " ".join(["rows", *axes[1:]] if rows else axes)

    sides = (
        ", ".join(names(arrays, rows, prefix))
        for arrays, rows, prefix in zip((arguments, results), has_rows, "ab")
    )
    return " -> ".join(sides)
