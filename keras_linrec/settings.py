"""The package's settings, as the code that depends on them reads them."""

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

KERNELS = ("native", "associative", "sequential", "reference")

_VARIABLE = "KERAS_LINREC_KERNEL"

# The kernel that `keras_linrec.config.set_kernel` chose, or `None`.
kernel = None


def requested_kernel():
    """The requested kernel, from `set_kernel` or the environment, or "auto".

    Raises:
        ValueError: if the environment variable does not name a kernel.
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
    """The export in progress."""

    # The `format` argument of `model.export`, or `None`.
    format: str | None = None
    # Whether the file must accept inputs of more than one size.
    is_dynamic: bool = False


class Mesh(NamedTuple):
    """The arguments of `keras_linrec.config.sequence_parallel`."""

    mesh: object
    time_axis: str
    batch_axis: str | None


_export = ContextVar("keras_linrec_export", default=None)
_mesh = ContextVar("keras_linrec_mesh", default=None)

# By the name of a setting, a function of its value that returns a context in
# which the backend's compiler does not reuse programs compiled under another
# value. `keras_linrec.kernels` fills it in for the backends that need it.
tell_compiler = {}


def current_export():
    """The `Export` of the innermost scope of portable kernels, or `None`."""
    return _export.get()


def current_mesh():
    """The `Mesh` of the innermost `sequence_parallel`, or `None`."""
    return _mesh.get()


def exporting(export):
    """The scope of an export; takes an `Export`."""
    return _setting("portable_kernels", _export, export)


def sharing(mesh):
    """The scope of sequence parallelism; takes a `Mesh`."""
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
