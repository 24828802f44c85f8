"""The flags that the adapter needs in addition to the core's."""

import jax

from keras_linrec.kernels.native import BuildError


def flags():
    """The framework's package, flags to compile with, flags to link with."""
    require_ffi()
    return "jaxlib", ("-isystem", jax.ffi.include_dir()), ()


def require_ffi():
    """Raise a `BuildError` if JAX is older than its interface for C++."""
    if not hasattr(jax, "ffi"):
        raise BuildError(
            f"the native kernels need JAX 0.5 or newer, and {jax.__version__} "
            "is installed: upgrade it"
        )
