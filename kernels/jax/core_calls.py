"""Calls of the C++ core as XLA FFI targets.

Importing this module builds and loads the library.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import jax

from keras_linrec.kernels.jax import portable_calls
from keras_linrec.kernels.jax.batch_partitioning import by_rows
from keras_linrec.kernels.jax.build_flags import require_ffi
from keras_linrec.kernels.jax.lowering import native_or_portable
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_shapes import require_shapes


def _register(path):
    """Tell XLA about the functions of a library."""
    library = ctypes.CDLL(path)
    for name in core.FUNCTIONS:
        jax.ffi.register_ffi_target(
            name,
            jax.ffi.pycapsule(getattr(library, f"{name}_xla")),
            platform="cpu",
        )
    return library


require_ffi()
library = build.load("jax", _register)

# For functions that run on NVIDIA GPUs, what makes their form there of a
# `CoreCall` and the tree of its arguments: `cuda.py` adds them.
on_cuda = {}

# The module that has all functions, for errors.
FUNCTIONS = "keras_linrec.kernels.jax.native"


def require_call_shapes(function, names, arguments, expected):
    """Raise unless the arguments of a native function have these shapes."""
    # The sizes of a program that is exported may be symbols, which need not
    # compare.
    sizes = [n for part in jax.tree.leaves(arguments) for n in part.shape]
    if all(isinstance(size, int) for size in sizes):
        function = f"{FUNCTIONS}.{function}"
        require_shapes(function, names, arguments, expected)


def call(name, results, arguments, rows=None, aliases=None, **attributes):
    """Call the core on trees of arrays; `results` is a tree of shapes.

    `jax.vmap` gives all arrays leading axes, which the core treats as separate
    systems. `rows` tells which arguments and which results have the rows of a
    batch: two trees, which may be prefixes, or `None` for a call without a
    batch. `aliases` maps arguments to the results that may reuse their memory,
    by their indices in flat lists.
    """
    flat, tree = jax.tree.flatten(results)
    given, given_tree = jax.tree.flatten(arguments)
    if rows is not None:
        rows = _spread(rows[0], arguments), _spread(rows[1], results)
    attributes = tuple(sorted(attributes.items()))
    core = CoreCall(name, tuple((aliases or {}).items()), attributes)
    portable = _PortableCall(name, given_tree, tuple(flat), attributes)
    natives = (("cpu", _OnRows(core, tuple(flat), rows)),)
    if name in on_cuda:
        run = on_cuda[name](core, given_tree)
        natives += (("cuda", _OnRows(run, tuple(flat), rows)),)
    outputs = native_or_portable(natives, portable, flat, given)
    return jax.tree.unflatten(tree, outputs)


@dataclass(frozen=True)
class CoreCall:
    """A call of the core: a function of shapes of results, and flat arrays."""

    name: str
    aliases: tuple
    attributes: tuple

    def __call__(self, shapes, *arguments):
        return jax.ffi.ffi_call(
            self.name,
            shapes,
            vmap_method="broadcast_all",
            input_output_aliases=dict(self.aliases) or None,
        )(*arguments, **dict(self.attributes))


@dataclass(frozen=True)
class _OnRows:
    """Such a function, of which each device computes the rows that it holds."""

    run: Callable
    results: tuple
    rows: tuple | None

    def __call__(self, *arguments):
        if self.rows is None:
            return self.run(list(self.results), *arguments)
        return by_rows(self.run, arguments, list(self.results), self.rows)


@dataclass(frozen=True)
class _PortableCall:
    """The same call in portable form."""

    name: str
    arguments: object
    results: tuple
    attributes: tuple

    def __call__(self, *arguments):
        outputs = portable_calls.CALLS[self.name](
            self.results,
            *jax.tree.unflatten(self.arguments, arguments),
            **dict(self.attributes),
        )
        return jax.tree.leaves(outputs)


def _spread(prefix, tree):
    """The leaves of `prefix`, repeated for each leaf of `tree` below them."""
    spread = jax.tree.map(
        lambda value, part: [value] * len(jax.tree.leaves(part)), prefix, tree
    )
    return tuple(jax.tree.leaves(spread))


def like(arrays):
    """The shapes and dtypes of a tree of arrays."""
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays
    )


def like_wanted(arrays, wanted):
    """The same, but without elements where `wanted`, a flat list, is false."""
    leaves, tree = jax.tree.flatten(arrays)
    shapes = [
        jax.ShapeDtypeStruct(a.shape if one else (0,), a.dtype)
        for a, one in zip(leaves, wanted)
    ]
    return jax.tree.unflatten(tree, shapes)
