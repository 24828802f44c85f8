"""Calls of native code that become portable code where native code cannot run.

A program may be lowered for another platform than the default one, for several,
or for a file that runs where this package is not installed. JAX reveals this
only when it lowers a program, long after tracing. Therefore a primitive is
traced, and lowering turns it into native code or into the portable form.
"""

from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from functools import partial

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.interpreters import mlir

from keras_linrec.kernels.jax.manual_axes import alike
from keras_linrec.kernels.jax.manual_axes import shaped_alike

_native_or_portable = Primitive("keras_linrec_native_or_portable")
_native_or_portable.multiple_results = True


def native_or_portable(natives, portable, results, arguments):
    """The results of a native function where it can run, else of `portable`.

    Args:
        natives: tuple of pairs, a platform and a function that runs on it;
            `None` stands for any platform. In a file, or in a program for
            several platforms, only `portable` runs.
        portable: function. It and the others take arrays and return a list of
            arrays; they are traced when a program is lowered. They compare
            equal for equal calls, so that JAX can reuse a compiled program.
        results: the shapes and dtypes of the results, as
            `jax.ShapeDtypeStruct`s.
        arguments: list of arrays.
    """
    return _native_or_portable.bind(
        *alike(arguments),
        natives=natives,
        portable=portable,
        results=tuple(jax.core.ShapedArray(r.shape, r.dtype) for r in results),
    )


@_native_or_portable.def_abstract_eval
def _shapes(*arguments, results, **_):
    return [shaped_alike(result, arguments) for result in results]


@_native_or_portable.def_impl
def _run(*arguments, **parameters):
    # Also within `jax.disable_jit`, as JAX' own operations: `bind` alone would
    # come back here.
    with jax.disable_jit(False):
        return _program(tuple(sorted(parameters.items())))(*arguments)


@lru_cache(maxsize=512)
def _program(parameters):
    # Outside `jit`, JAX compiles each operation separately and caches it by its
    # parameters.
    return jax.jit(partial(_native_or_portable.bind, **dict(parameters)))


def _lower(context, *arguments, natives, portable, results):
    module = _with_devices(context.module_context)
    settings = getattr(module, "lowering_parameters", None)
    chosen = portable
    if module and not getattr(settings, "for_export", False):
        for platform, native in natives:
            if platform is None or tuple(module.platforms) == (platform,):
                chosen = native
    lower = mlir.lower_fun(chosen, multiple_results=True)
    if module:
        context = context.replace(module_context=module)
    return lower(context, *arguments)


def _with_devices(module):
    """The context of a module, in which the program's devices are known.

    JAX lowers a program without them, unless it sees an operation of its own
    that asks for them: one that is partitioned, or calls Python. Ours are
    hidden in the primitive. They need to know how many devices there are, not
    which: a program numbers its devices itself.

    Returns:
        `None` if there are fewer devices here than in the program.
    """
    place = module.axis_context
    if getattr(place, "device_assignment", ()) is not None:
        return module
    devices = tuple(_devices(module.platforms[0])[: place.num_devices])
    if len(devices) < place.num_devices:
        return None
    place = replace(place, device_assignment=devices)
    return module.replace(axis_context=place)


def _devices(platform):
    try:
        return jax.devices(platform)
    except RuntimeError:
        # The program is for another machine.
        return jax.devices()


mlir.register_lowering(_native_or_portable, _lower)


@dataclass(frozen=True)
class _Mapped:
    """A function under `jax.vmap`, comparable by value."""

    function: object
    axes: tuple

    def __call__(self, *arguments):
        return jax.vmap(self.function, self.axes)(*arguments)


def _batch(arguments, axes, *, natives, portable, results):
    (size,) = {
        argument.shape[axis]
        for argument, axis in zip(arguments, axes)
        if axis is not None
    }
    axes = tuple(axes)
    outputs = native_or_portable(
        tuple((name, _Mapped(native, axes)) for name, native in natives),
        _Mapped(portable, axes),
        [result.update(shape=(size, *result.shape)) for result in results],
        arguments,
    )
    return outputs, [0] * len(outputs)


batching.primitive_batchers[_native_or_portable] = _batch
