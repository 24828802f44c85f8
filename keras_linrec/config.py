"""Settings of the package."""

from contextlib import contextmanager

import keras

from keras_linrec import settings


def set_kernel(kernel):
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
    if kernel not in (None, "auto", *settings.KERNELS):
        raise ValueError(
            f"`kernel` should be None, 'auto' or one of {settings.KERNELS}. "
            f"Received: kernel={kernel}"
        )
    settings.kernel = kernel


def get_kernel():
    """Return the kernel set by `set_kernel`, or `None`."""
    return settings.kernel


@contextmanager
def portable_kernels():
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
def sequence_parallel(mesh, time_axis="time", batch_axis=None):
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
