"""JAX: an in-place loop for the CPU, a tree of products for accelerators."""

from keras_linrec.kernels.jax.loop import loop as loop
from keras_linrec.kernels.jax.scan import associative as associative
from keras_linrec.kernels.jax.scan import sequential as sequential


def preferred():
    """The faster kernel here, by measurement.

    Forward and backward on a 2-core CPU at (16, 4096, 256), real: 132 ms in
    the loop, 429 ms with `lax.associative_scan`; complex: 267 against 1,100.
    An accelerator pays for every step of a loop with a launch.
    """
    import jax

    return "sequential" if jax.default_backend() == "cpu" else "associative"


def compiled():
    """The module of the compiled kernels for the device at hand."""
    import jax

    if jax.default_backend() == "cpu":
        from keras_linrec.kernels.jax import native

        return native
    from keras_linrec.kernels.jax import pallas

    return pallas


def devices(mesh, time_axis, batch_axis):
    """Those that share the time of sequences."""
    from keras_linrec.kernels.jax import sequence_parallel

    return sequence_parallel.devices(mesh, time_axis, batch_axis)


def over_devices(kernel, devices):
    """The `Kernel` of which every device runs its part of the time."""
    from keras_linrec.kernels.jax import sequence_parallel

    return sequence_parallel.over_devices(kernel, devices)


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then the gradients of its arguments."""
    import jax

    @jax.jit
    def run(tensors, cotangents):
        outputs, pull_back = jax.vjp(function, tensors)
        return [*outputs, *pull_back(cotangents)[0]]

    return run(tensors, cotangents)
