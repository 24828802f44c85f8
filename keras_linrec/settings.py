"""The package's settings, as the code that depends on them reads them."""

import os
from contextlib import contextmanager
from contextlib import nullcontext
from contextvars import ContextVar
from typing import NamedTuple
from typing import get_args

from keras_linrec import types

KERNELS: tuple[types.Kernel, ...] = get_args(types.Kernel)[1:]

_VARIABLE = "KERAS_LINREC_KERNEL"

# The kernel that `keras_linrec.config.set_kernel` chose, or `None`.
kernel = None


def environment(variable, default=""):
    """An environment variable; an empty or blank one counts as unset."""
    return os.environ.get(variable, "").strip() or default


def requested_kernel():
    """The requested kernel, from `set_kernel` or the environment, or "auto".

    Raises:
        ValueError: if the environment variable does not name a kernel.
    """
    if kernel is not None:
        return kernel
    name = environment(_VARIABLE, "auto")
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


_export = ContextVar("keras_linrec_export", default=None)

# A context in which the backend's compiler reuses nothing that it has compiled
# for another `Export`. `keras_linrec.kernels` sets it for a backend that needs
# one.
compiler_scope = nullcontext

# The backend's context of `keras_linrec.config.sequence_parallel`, a function
# of the same arguments, or `None` if it has none. `keras_linrec.kernels` sets
# it.
sequence_parallel = None


def current_export():
    """The `Export` of the innermost scope of portable kernels, or `None`."""
    return _export.get()


@contextmanager
def exporting(export):
    """The scope of an export; takes an `Export`."""
    before = _export.set(export)
    try:
        with compiler_scope(export):
            yield
    finally:
        _export.reset(before)


# Whether weights that are loaded must be finite.
_requires_finite = ContextVar("keras_linrec_requires_finite", default=True)


def requires_finite():
    """Whether weights that are loaded in this context must be finite."""
    return _requires_finite.get()


@contextmanager
def loading(require_finite):
    """The scope in which a file is loaded."""
    before = _requires_finite.set(require_finite)
    try:
        yield
    finally:
        _requires_finite.reset(before)
