"""What the adapter needs beyond the core's flags."""


def flags():
    """The framework's package, flags to compile with, flags to link with."""
    import jax

    return "jaxlib", ("-isystem", jax.ffi.include_dir()), ()
