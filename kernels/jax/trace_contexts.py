"""Scopes that are part of JAX's cache key, so that it retraces within them."""

from contextlib import contextmanager
from contextlib import nullcontext
from contextvars import ContextVar

import jax

from keras_linrec.kernels.jax.sequence_parallel import devices_of

# Versions of JAX before 0.7 lack these contexts and may reuse a program from
# another scope; only the mesh is part of their cache key.
_user_context = getattr(jax, "make_user_context", lambda default: None)
_portable = _user_context(None)
_shared_time = _user_context(None)

_devices = ContextVar("keras_linrec_devices", default=None)


def current_devices():
    """The `Devices` of the innermost `sequence_parallel`, or `None`."""
    return _devices.get()


def portable_kernels(export):
    """A scope in which a file is written, a `settings.Export`."""
    return nullcontext() if _portable is None else _portable(export)


@contextmanager
def sequence_parallel(mesh, time_axis, batch_axis):
    """See `keras_linrec.config.sequence_parallel`."""
    devices = devices_of(mesh, time_axis, batch_axis)
    before = _devices.set(devices)
    try:
        with devices.mesh if _shared_time is None else _shared_time(devices):
            yield
    finally:
        _devices.reset(before)
