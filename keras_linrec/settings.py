"""What is set for the package, for those who have to know."""

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

KERNELS = ("native", "associative", "sequential", "reference")

_VARIABLE = "KERAS_LINREC_KERNEL"

# The kernel that `keras_linrec.config.set_kernel` chose, or `None`.
kernel = None


def wanted_kernel():
    """`"auto"` or the kernel that was asked for, here or by the environment.

    Raises:
        ValueError: if the environment variable names none.
    """
    if kernel is not None:
        return kernel
    name = os.environ.get(_VARIABLE, "auto")
    if name not in ("auto", *KERNELS):
        raise ValueError(
            f"`{_VARIABLE}` should name a kernel: 'auto' or one of "
            f"{KERNELS}. Received: {_VARIABLE}={name}"
        )
    return name


class Export(NamedTuple):
    """What is known of a file that is being written."""

    # The format that Keras was asked for, or `None`.
    format: str | None = None
    # Whether the file has to take inputs of more than one size.
    is_dynamic: bool = False


class Mesh(NamedTuple):
    """Devices that share the time of sequences, as the user named them."""

    mesh: object
    time_axis: str
    batch_axis: str | None


_export = ContextVar("keras_linrec_export", default=None)
_mesh = ContextVar("keras_linrec_mesh", default=None)

# What tells a backend's compiler that a setting has changed, so that nothing
# compiled under another value is used again: `tell(value)` is a context.
# `keras_linrec.kernels` puts it here for the backends that need it.
tell_compiler = {}


def current_export():
    """The `Export` of the innermost scope of portable kernels, or `None`."""
    return _export.get()


def current_mesh():
    """The `Mesh` of the innermost `sequence_parallel`, or `None`."""
    return _mesh.get()


def exporting(export):
    """A scope in which a file is written, an `Export`."""
    return _setting("portable_kernels", _export, export)


def sharing(mesh):
    """A scope in which devices share the time, a `Mesh`."""
    return _setting("sequence_parallel", _mesh, mesh)


@contextmanager
def _setting(name, variable, value):
    before = variable.set(value)
    try:
        if name in tell_compiler:
            with tell_compiler[name](value):
                yield
        else:
            yield
    finally:
        variable.reset(before)
