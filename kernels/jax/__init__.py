"""JAX: an in-place loop for the CPU, a tree of products for accelerators."""

from contextlib import nullcontext
from contextlib import suppress
from functools import partial

from keras_linrec import settings
from keras_linrec.kernels.jax import sequence_parallel
from keras_linrec.kernels.jax import trace_contexts
from keras_linrec.kernels.jax.loop import loop as loop
from keras_linrec.kernels.jax.manual_axes import alike as alike
from keras_linrec.kernels.jax.powers import (
    powers_with_remainder as powers_with_remainder,
)
from keras_linrec.kernels.jax.scan import associative as associative
from keras_linrec.kernels.jax.scan import portable as portable
from keras_linrec.kernels.jax.scan import sequential as sequential
from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.operations import projected_scan

settings.compiler_scope = trace_contexts.portable_kernels
settings.sequence_parallel = trace_contexts.sequence_parallel

# See `kernel_of_loops` of `keras_linrec.kernels.exporting`.
KERNELS_OF_LOOPS = {"onnx": "reference"}


def preferred():
    """The portable kernel, whose algorithm depends on the platform."""
    return "portable"


def compiled():
    """The module of the compiled kernels for the default device."""
    if platform() == "cpu":
        from keras_linrec.kernels.jax import native

        return native
    if platform() == "cuda":
        with suppress(BuildError, UnsupportedPlatform):
            from keras_linrec.kernels.jax import cuda

            return cuda
    from keras_linrec.kernels.jax import pallas

    return pallas


def uses_pallas(platform_of_case):
    """Whether the native kernels of a platform are those of Pallas."""
    if platform_of_case == "cpu":
        return False
    # For a GPU that is not here, the kernel that any of them has.
    here = platform_of_case == platform()
    return not here or compiled().__name__.endswith(".pallas")


def platform():
    """The platform that programs are compiled for by default."""
    import jax

    name = jax.default_backend()
    return "cuda" if name == "gpu" else name


def native_platform():
    """The platform of the compiled kernels."""
    return platform()


def has_native(platform_of_case):
    """Whether there are compiled kernels for a platform."""
    return True


def describe(tensor):
    """The fields of a `Case` that depend on a call's tensors."""
    return {"platform": platform()}


def choose(condition, if_true, if_false):
    """The results of one of two functions, chosen at run time.

    Args:
        condition: boolean scalar tensor.
        if_true, if_false: functions without arguments, of results of the same
            shapes.
    """
    import jax

    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, if_true, if_false)
    # Outside a compiled function, a `cond` would be compiled each time.
    return if_true() if condition else if_false()


def unrecorded():
    """A scope for what a custom gradient stands in for."""
    return nullcontext()


def values_of(tensor):
    """See `keras_linrec.ops.concrete_values`."""
    import jax
    import numpy as np

    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer):
        return None
    # Of an array on several processes, this one has a part.
    is_here = tensor.is_fully_addressable and platform() == "cpu"
    return np.asarray(tensor) if is_here else None


def by_sections(scan):
    """A projected scan that keeps the states of a section of time."""
    if trace_contexts.current_devices() is not None:
        # Devices have sections of their own.
        return partial(projected_scan.projected_scan, scan)
    from keras_linrec.kernels.jax import sections

    return partial(sections.by_sections, scan)


def by_contour(blocks):
    """The impulse response in `impulse_by_contour.py`."""
    from keras_linrec.kernels.jax import impulse_by_contour as contour

    return partial(contour.impulse_by_contour, blocks)


def contour_is_fast(platform_of_case, time):
    """Whether the contour is the fastest form without native code."""
    from keras_linrec.kernels.jax import impulse_by_contour as contour

    return contour.is_fast(platform_of_case, time)


def exporting():
    """Whether an export scope is open.

    JAX's own exports are detected when a program is lowered.
    """
    return settings.current_export() is not None


def over_devices(kernel):
    """The `Kernel`, split over time if `sequence_parallel` is active."""
    devices = trace_contexts.current_devices()
    if devices is None:
        return kernel
    return sequence_parallel.over_devices(kernel, devices)


def checking():
    """The scope in which a kernel is checked: with products in float32."""
    import jax

    return jax.default_matmul_precision("highest")


def in_full_precision(function, *tensors):
    """A product of float32 arrays, and its gradients, in float32.

    Args:
        function: a function of arrays that computes one product.
        *tensors: its arguments.
    """
    import jax

    # The transposes of a product inherit its precision.
    with jax.default_matmul_precision("highest"):
        return function(*tensors)


def program(function):
    """A function of tensors as users run it: compiled."""
    import jax

    return jax.jit(function)


def device_name():
    """The device that programs run on by default, in words."""
    import jax

    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind} ({platform()})"


def trace(function, shape, dtype):
    """Trace a function of one tensor, even if it was traced before."""
    import jax

    jax.eval_shape(
        lambda tensor: function(tensor), jax.ShapeDtypeStruct(shape, dtype)
    )


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then its arguments' gradients."""
    import jax

    @jax.jit
    def run(tensors, cotangents):
        outputs, pull_back = jax.vjp(function, tensors)
        return [*outputs, *pull_back(cotangents)[0]]

    return run(tensors, cotangents)
