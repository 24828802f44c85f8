"""Settings of the package."""

from contextlib import contextmanager

import keras

from keras_linrec import settings


def set_kernel(kernel):
    """Choose how the scans run.

    Results do not depend on the choice, up to rounding; speed and memory do.
    A model that is already compiled keeps the kernel it was compiled with.
    A kernel that does not run here is replaced, with one warning:
    `keras_linrec.kernels.available()` says why.

    Args:
        kernel: `"auto"` (the fastest that runs here, by measurement),
            `"native"` (compiled code), `"associative"` (parallel in time),
            `"sequential"` (one step after another), `"reference"` (the plain
            definition), or `None` to follow the environment variable
            `KERAS_LINREC_KERNEL` again, which is `"auto"` where it is unset.

    Raises:
        ValueError: if there is no such kernel.

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
    """The kernel set by `set_kernel`, or `None`."""
    return settings.kernel


@contextmanager
def portable_kernels():
    """A scope in which models run without native code.

    What is traced in it holds operations of the framework alone, so that a
    file of it runs where this package is not installed. `model.export` opens
    the scope by itself; JAX's exporter, TensorFlow's `tf.saved_model.save` and
    PyTorch's `torch.onnx.export` need none. Open it around a function that
    something else writes to a file: `keras.export.ExportArchive` on
    TensorFlow, `torch.export`, or a `tf.function` that was called before it
    is saved.

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
    """A scope in which devices share the time of sequences, on JAX.

    Of every linear scan each device runs its part of the time, and devices
    tell each other one state a part. What else a model computes step by step,
    XLA shares out by itself; what needs all steps at once, as the convolution
    of an `LSSL` or a nonlinear recurrence, it gathers. Results do not depend
    on the scope, up to rounding, and gradients neither. Sequences of fewer
    steps than devices run whole.

    Args:
        mesh: `keras.distribution.DeviceMesh` or `jax.sharding.Mesh`, the
            devices.
        time_axis: the name of the mesh's axis that shares the time. Defaults
            to `"time"`.
        batch_axis: the name of the axis that shares the rows of a batch, or
            `None` (the default), if none does. A batch that it does not
            divide has all rows on each of its devices.

    Raises:
        ValueError: on another backend than JAX, if `mesh` is no mesh, and if
            it has no such axis.

    Example: of eight devices, each has an eighth of the steps; here there may
    be one.

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
