"""A call that XLA may share among devices, each with rows of its own.

What is compiled elsewhere is one piece to XLA: where a batch lies on several
devices, it is gathered on each of them, and each computes all of it. Here it
is told that rows are independent.
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
    """What `call` returns, computed where the rows lie.

    Args:
        call: takes a list of shapes and dtypes, and arrays, and returns a
            list of arrays of these shapes. A result without rows is a sum over
            the rows.
        arguments: list of arrays.
        results: list of the shapes and dtypes of the results.
        has_rows: a list for the arguments and one for the results, whether
            the first axis of each is that of the rows.
    """
    whole = partial(call, results)
    if jax.device_count() == 1:
        return whole(*arguments)

    @custom_vmap
    def run(*arguments):
        return _partitioned(call, arguments, results, has_rows)

    @run.def_vmap
    def _(size, batched, *arguments):
        # What `jax.vmap` adds is gathered, as it would be without this.
        axes = [0 if axis else None for axis in batched]
        return jax.vmap(whole, axes)(*arguments), [True] * len(results)

    return run(*arguments)


def _partitioned(call, arguments, results, has_rows):
    takes_rows, gives_rows = has_rows

    def partition(mesh, arguments, results):
        mesh, axes = _axes_of_rows(mesh, arguments, takes_rows)

        def part(*arguments):
            # Here the first axis is that of one device's rows.
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
    """A mesh, and the names of its axes that share the rows, or `None`.

    XLA tells where an argument lies, or nothing; older versions of JAX do
    without the names of a mesh. Rows that devices do not divide are gathered:
    what fills them up would count in the sums over rows.
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
                # Any devices do: it is their number that XLA asks for.
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
    """How many parts the rows have; 1 if they are not as long."""
    try:
        return shape[0] // place.shard_shape(shape)[0]
    except ValueError:
        return 1


def _mesh(devices, parts):
    devices = np.array(sorted(devices, key=lambda d: d.id) or jax.devices())
    return Mesh(devices.reshape(parts, -1), ("rows", "others"))


def _sharding_rule(arguments, results, has_rows):
    """As "rows a0_1, a1_0 -> rows b0_1": no axis but that of rows is shared."""

    def names(arrays, has_rows, prefix):
        for index, (array, rows) in enumerate(zip(arrays, has_rows)):
            axes = [f"{prefix}{index}_{axis}" for axis in range(array.ndim)]
            yield " ".join(["rows", *axes[1:]] if rows else axes)

    sides = (
        ", ".join(names(arrays, rows, prefix))
        for arrays, rows, prefix in zip((arguments, results), has_rows, "ab")
    )
    return " -> ".join(sides)
