"""Arrays within `jax.shard_map`, which checks what differs between devices.

There the type of an array names the axes of the mesh along which it varies.
JAX adapts the arguments of its own operations to each other. Those of a loop,
of a foreign call and of a function with a gradient of its own have to vary
along the same axes.
"""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

# Before 0.8, JAX has another cast, or no such types.
_HAS_TYPES = hasattr(jax, "typeof") and hasattr(jax.lax, "pcast")


def alike(nest):
    """The nest, in which all arrays vary along the same axes.

    The gradient of what devices share becomes the sum of theirs.
    """
    if not _HAS_TYPES:
        return nest
    leaves, structure = jax.tree.flatten(nest)
    axes = frozenset().union(*map(_axes_of, leaves))
    if not axes:
        return nest
    return structure.unflatten(_varying(leaf, axes) for leaf in leaves)


def shaped_alike(shaped, types):
    """A `ShapedArray` that varies as arrays of these types do."""
    for one in types:
        if _axes_of_type(one):
            return one.update(
                shape=shaped.shape,
                dtype=shaped.dtype,
                weak_type=False,
                sharding=NamedSharding(one.sharding.mesh, PartitionSpec()),
            )
    return shaped


def _varying(leaf, axes):
    if not isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf
    missing = axes - _axes_of(leaf)
    return jax.lax.pcast(leaf, tuple(missing), to="varying")


def _axes_of(leaf):
    if not isinstance(leaf, jax.core.Tracer):
        return frozenset()
    return _axes_of_type(jax.typeof(leaf))


def _axes_of_type(one):
    # JAX 0.10 has moved the attribute.
    kind = getattr(one, "mat", None)
    if kind is None:
        return getattr(one, "vma", frozenset())
    return kind.varying
