"""What the adapter needs beyond the core's flags."""

from keras_linrec.kernels.native import BuildError


def flags():
    """The framework's package, flags to compile with, flags to link with."""
    import jax

    if not hasattr(jax, "ffi"):
        raise BuildError(
            f"the native kernels need JAX 0.5 or newer, and this is "
            f"{jax.__version__}: upgrade it"
        )
    return "jaxlib", ("-isystem", jax.ffi.include_dir()), ()
