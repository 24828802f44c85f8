"""JAX: an in-place loop for the CPU, a tree of products for accelerators."""

from contextlib import nullcontext

from keras_linrec import settings
from keras_linrec.kernels.jax import trace_contexts
from keras_linrec.kernels.jax.loop import loop as loop
from keras_linrec.kernels.jax.scan import associative as associative
from keras_linrec.kernels.jax.scan import portable as portable
from keras_linrec.kernels.jax.scan import sequential as sequential

settings.tell_compiler.update(trace_contexts.CONTEXTS)


def preferred():
    """The portable kernel: which algorithm it is, is settled by platform."""
    return "portable"


def compiled():
    """The module of the compiled kernels for the device at hand."""
    if platform() == "cpu":
        from keras_linrec.kernels.jax import native

        return native
    from keras_linrec.kernels.jax import pallas

    return pallas


def platform():
    """The platform that programs are compiled for, if nobody says another."""
    import jax

    name = jax.default_backend()
    return "cuda" if name == "gpu" else name


def describe(tensor):
    """What a `Case` says of the tensors that a call was given."""
    return {"platform": platform()}


def exporting():
    """Whether a scope says so: JAX itself does when a program is lowered."""
    return settings.current_export() is not None


def over_devices(kernel):
    """The `Kernel`, or that of which every device runs its part of the time."""
    mesh = settings.current_mesh()
    if mesh is None:
        return kernel
    from keras_linrec.kernels.jax import sequence_parallel

    return sequence_parallel.over_devices(
        kernel, sequence_parallel.devices(*mesh)
    )


def checking():
    """The scope in which a kernel is checked."""
    return nullcontext()


def trace(function, shape, dtype):
    """Trace a function of one tensor."""
    import jax

    jax.eval_shape(function, jax.ShapeDtypeStruct(shape, dtype))


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then the gradients of its arguments."""
    import jax

    @jax.jit
    def run(tensors, cotangents):
        outputs, pull_back = jax.vjp(function, tensors)
        return [*outputs, *pull_back(cotangents)[0]]

    # A kernel is judged by its own recurrence, and not by the products that a
    # platform takes by default.
    with jax.default_matmul_precision("highest"):
        return run(tensors, cotangents)
