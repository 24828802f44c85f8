"""What makes JAX trace anew where a setting has changed."""

from contextlib import nullcontext

import jax

from keras_linrec.kernels.jax import sequence_parallel

# Before JAX had these (0.7), programs of one scope might be used in another;
# only the mesh was among what it compiles for.
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
