"""Calls of native code that become portable code where native code cannot run.

A program may be lowered for another platform than the default one, for several,
or for a file that runs where this package is not installed. JAX reveals this
only when it lowers a program, long after tracing. Therefore a primitive is
traced, and lowering turns it into native code or into the portable form.
"""

from dataclasses import dataclass
from functools import lru_cache
from functools import partial

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.interpreters import mlir

_native_or_portable = Primitive("keras_linrec_native_or_portable")
_native_or_portable.multiple_results = True


def native_or_portable(
    native, portable, results, arguments, platforms=("cpu",)
):
    """The results of `native` where it can run, and of `portable` elsewhere.

    Args:
        native, portable: functions of arrays that return a list of arrays;
            they are traced when a program is lowered. They compare equal for
            equal calls, so that JAX can reuse a compiled program.
        results: the shapes and dtypes of the results, as
            `jax.ShapeDtypeStruct`s.
        arguments: list of arrays.
        platforms: tuple of the platforms on which `native` runs, `None` for
            all. It never runs in a file, nor in a program for several
            platforms. Defaults to `("cpu",)`.
    """
    return _native_or_portable.bind(
        *arguments,
        native=native,
        portable=portable,
        results=tuple(jax.core.ShapedArray(r.shape, r.dtype) for r in results),
        platforms=platforms,
    )


@_native_or_portable.def_abstract_eval
def _shapes(*arguments, results, **_):
    return list(results)


@_native_or_portable.def_impl
def _run(*arguments, **parameters):
    return _program(tuple(sorted(parameters.items())))(*arguments)


@lru_cache(maxsize=512)
def _program(parameters):
    # Outside `jit`, JAX compiles each operation separately and caches it by its
    # parameters.
    return jax.jit(partial(_native_or_portable.bind, **dict(parameters)))


def _lower(context, *arguments, native, portable, results, platforms):
    module = context.module_context
    settings = getattr(module, "lowering_parameters", None)
    for_file = getattr(settings, "for_export", False)
    here = platforms is None or (
        len(module.platforms) == 1 and module.platforms[0] in platforms
    )
    here = here and not for_file
    lower = mlir.lower_fun(native if here else portable, multiple_results=True)
    return lower(context, *arguments)


mlir.register_lowering(_native_or_portable, _lower)


@dataclass(frozen=True)
class _Mapped:
    """A function under `jax.vmap`, comparable by value."""

    function: object
    axes: tuple

    def __call__(self, *arguments):
        return jax.vmap(self.function, self.axes)(*arguments)


def _batch(arguments, axes, *, native, portable, results, platforms):
    (size,) = {
        argument.shape[axis]
        for argument, axis in zip(arguments, axes)
        if axis is not None
    }
    outputs = native_or_portable(
        _Mapped(native, tuple(axes)),
        _Mapped(portable, tuple(axes)),
        [result.update(shape=(size, *result.shape)) for result in results],
        arguments,
        platforms,
    )
    return outputs, [0] * len(outputs)


batching.primitive_batchers[_native_or_portable] = _batch
