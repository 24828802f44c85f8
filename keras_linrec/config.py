"""Settings of the package."""

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_linrec import settings
from keras_linrec import types
from keras_linrec.validation import require_between
from keras_linrec.validation import require_choice

__all__ = [
    "get_kernel",
    "keep_freed_memory",
    "portable_kernels",
    "sequence_parallel",
    "set_kernel",
]


# The parameters of glibc's `mallopt`, in <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
# `mallopt` takes a C int.
_MOST_BYTES = 2**31 - 1


def set_kernel(kernel: types.Kernel | None) -> None:
    """Choose the kernel that runs the scans.

    The choice affects speed and memory; results change only by rounding. A
    model that is already compiled keeps its kernel. A kernel that cannot run
    here is replaced with a single warning; `keras_linrec.kernels.available()`
    gives the reason.

    Args:
        kernel: `"auto"` (the fastest available here, as measured),
            `"native"` (compiled code), `"associative"` (parallel in time),
            `"sequential"` (one step after another), `"reference"` (the plain
            definition), or `None` to follow the environment variable
            `KERAS_LINREC_KERNEL` again, which defaults to `"auto"`.

    Raises:
        ValueError: if `kernel` is none of these.

    Example:

    >>> import keras_linrec
    >>> keras_linrec.config.set_kernel("sequential")
    >>> keras_linrec.config.get_kernel()
    'sequential'
    >>> keras_linrec.config.set_kernel(None)
    """
    require_choice("kernel", kernel, (None, "auto", *settings.KERNELS))
    settings.kernel = kernel


def get_kernel() -> types.Kernel | None:
    """Return the kernel set by `set_kernel`, or `None`."""
    return settings.kernel


def keep_freed_memory(limit: int = _MOST_BYTES) -> bool:
    """Keep freed memory in the process, for the next training step to reuse.

    On Linux, the C library returns each large buffer to the operating system
    as soon as it is freed. The next step allocates it anew and pays a page
    fault for every 4 KiB, which may take longer than the arithmetic. After
    this call, freed memory stays in the process, and all threads draw from one
    pool. See "Memory on Linux" in the guide to kernels for what this saves.

    Call it at the start of the program, before the first model: a thread that
    has already allocated memory keeps the pool that it has. The setting lasts
    as long as the process.

    Args:
        limit: number of free bytes at the end of the pool above
            which they are returned to the system, at most 2**31 - 1, which is
            the default. Free gaps between buffers are kept in any case, so
            the process stays as large as its largest step made it.

    Returns:
        Whether the setting applies. It does on Linux with glibc, unless
        another allocator has been preloaded; elsewhere a warning gives the
        reason, and nothing changes.

    Raises:
        ValueError: if `limit` is not a number from 0 to 2**31 - 1.

    Example:

    >>> import sys
    >>> import keras_linrec
    >>> if sys.platform == "linux":
    ...     kept = keras_linrec.config.keep_freed_memory()
    """
    require_between("limit", limit, 0, _MOST_BYTES)
    obstacle = _obstacle_to_mallopt()
    if obstacle is None:
        mallopt = ctypes.CDLL(None).mallopt
        parameters = (
            # Mapped buffers are returned as soon as they are freed.
            (_MMAP_MAX, 0),
            (_TRIM_THRESHOLD, int(limit)),
            # A thread's own pool maps every buffer above 64 MiB.
            (_ARENA_MAX, 1),
        )
        if all(mallopt(*parameter) for parameter in parameters):
            return True
        obstacle = "`mallopt` refused the setting"
    warnings.warn(
        f"Freed memory is returned to the system as before: {obstacle}.",
        stacklevel=2,
    )
    return False


def _obstacle_to_mallopt():
    """Why glibc's `mallopt` has no effect in this process, or `None`."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no `mallopt`"
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return "the C library is not glibc"
    glibc = ctypes.CDLL("libc.so.6")
    if _address(process.malloc) != _address(glibc.malloc):
        return "another allocator replaces glibc's"
    return None


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


@contextmanager
def portable_kernels() -> Iterator[None]:
    """A scope in which models run without native code.

    A function traced in this scope contains only the framework's own
    operations, so a file exported from it runs without this package.
    `model.export` opens the scope itself; JAX's exporter, TensorFlow's
    `tf.saved_model.save` and PyTorch's `torch.onnx.export` do not need it.
    Open it for any other exporter: `keras.export.ExportArchive` on TensorFlow,
    `torch.export`, or a `tf.function` that is called before it is saved.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> decay, inputs = np.full(2, 0.5, "float32"), np.ones((1, 8, 2))
    >>> with keras_linrec.config.portable_kernels():
    ...     outputs, state = keras_linrec.ops.linear_scan(decay, inputs)
    """
    with settings.exporting(settings.Export()):
        yield


@contextmanager
def sequence_parallel(
    mesh: Any, time_axis: str = "time", batch_axis: str | None = None
) -> Iterator[None]:
    """A scope that shards sequences along time over several devices, on JAX.

    Each device runs every linear scan on its own part of the time axis, and
    devices exchange one state per part. XLA shards the model's other
    position-wise operations, and gathers the sequence for operations that
    need all steps at once, such as the convolution of an `LSSL` or a
    nonlinear recurrence. Outputs and gradients change only by rounding.
    Sequences with fewer steps than devices are not sharded.

    Args:
        mesh: `keras.distribution.DeviceMesh` or `jax.sharding.Mesh`.
        time_axis: string, the mesh axis that shards time. Defaults to
            `"time"`.
        batch_axis: string, the mesh axis that shards the batch. Defaults to
            `None`: the batch is not sharded. A batch whose size is not a
            multiple of the axis' is replicated on all of its devices.

    Raises:
        ValueError: on a backend other than JAX, if `mesh` is not a mesh, or
            if it lacks one of the axes.

    Example: with eight devices, each would hold an eighth of the steps.

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> decay, inputs = np.full(2, 0.5, "float32"), np.ones((1, 8, 2))
    >>> if keras.backend.backend() == "jax":
    ...     devices = keras.distribution.list_devices()
    ...     mesh = keras.distribution.DeviceMesh(
    ...         (len(devices),), ["time"], devices
    ...     )
    ...     with keras_linrec.config.sequence_parallel(mesh):
    ...         outputs, state = keras_linrec.ops.linear_scan(decay, inputs)
    """
    if settings.sequence_parallel is None:
        raise ValueError(
            "`sequence_parallel` runs on the JAX backend of Keras. "
            f"Received: backend={keras.backend.backend()}"
        )
    with settings.sequence_parallel(mesh, time_axis, batch_axis):
        yield
