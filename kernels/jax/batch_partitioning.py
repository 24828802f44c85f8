"""Calls that XLA may partition over devices by the rows of a batch.

XLA cannot look inside a foreign call. If a batch is sharded over several
devices, XLA would gather it on each of them, and each would compute all of it.
Here XLA is told that rows are independent.
"""

from contextlib import suppress
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

    def partition(_, arguments, results):
        mesh, axes = _axes_of_rows(arguments, takes_rows)

        def part(*arguments):
            # Here the first axis holds the rows of one device.
            shapes = [
                jax.ShapeDtypeStruct(place.shard_shape(r.shape), r.dtype)
                for place, r in zip(places(gives_rows), results)
            ]
            return [
                result if rows or not axes else lax.psum(result, axes)
                for result, rows in zip(call(shapes, *arguments), gives_rows)
            ]

        def places(has_rows):
            return [
                NamedSharding(mesh, PartitionSpec(*[axes or None] * rows))
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
        # JAX does not always know the user's mesh: see `_axes_of_rows`.
        decode_shardings=False,
        sharding_rule=_sharding_rule(arguments, results, has_rows),
    )
    return partitioned(*arguments)


def _axes_of_rows(arguments, has_rows):
    """A mesh, and the names of its axes that partition the rows, a tuple.

    The mesh has an axis for each prime factor of the number of devices, and
    can express what a user's mesh can. If the devices do not divide the rows,
    these are gathered, because padding would count in the sums over rows.
    """
    known = [
        (argument, has)
        for argument, has in zip(arguments, has_rows)
        if argument.sharding is not None
    ]
    devices = known[0][0].sharding.device_set if known else jax.devices()
    axes = ()
    for argument, has in known:
        if has and not axes:
            with suppress(ValueError):
                places = argument.sharding.devices_indices_map(argument.shape)
                axes = _axes([rows.start or 0 for rows, *_ in places.values()])
    sizes = _prime_factors(len(devices))
    # Any order will do: XLA numbers the devices itself.
    mesh = np.reshape(list(devices), sizes)
    return Mesh(mesh, tuple(map(_name, range(len(sizes))))), axes


def _axes(starts):
    """The axes along which the first row of a device grows, fastest first.

    Args:
        starts: list of integers, the first row of each device.
    """
    sizes = _prime_factors(len(starts))
    places = np.indices(sizes)
    # The device that is second along an axis, and first along all others.
    strides = np.reshape(starts, sizes)[tuple(np.eye(len(sizes), dtype=int))]
    if not np.array_equal(np.tensordot(strides, places, 1).ravel(), starts):
        return ()
    axes = np.argsort(-strides)
    return tuple(_name(axis) for axis in axes if strides[axis])


def _name(axis):
    return f"devices_{axis}"


def _prime_factors(number):
    factors, factor = [], 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return factors


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
