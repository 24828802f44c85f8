"""Contexts that make JAX retrace when a setting has changed."""

from contextlib import nullcontext

import jax

from keras_linrec.kernels.jax import sequence_parallel

# Versions of JAX before 0.7 lack these contexts and may reuse a program from
# another scope; only the mesh is part of their cache key.
_user_context = getattr(jax, "make_user_context", lambda default: None)
_portable = _user_context(None)
_shared_time = _user_context(None)


def _portable_kernels(export):
    return nullcontext() if _portable is None else _portable(export)


def _sequence_parallel(mesh):
    devices = sequence_parallel.devices(*mesh)
    return devices.mesh if _shared_time is None else _shared_time(devices)


CONTEXTS = {
    "portable_kernels": _portable_kernels,
    "sequence_parallel": _sequence_parallel,
}
