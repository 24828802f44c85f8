"""What the adapter needs beyond the core's flags."""

from importlib import metadata


def flags():
    """The framework's package, flags to compile with, flags to link with."""
    import tensorflow as tf

    include = tf.sysconfig.get_include()
    folders = (
        include,
        # Headers that TensorFlow's own look for at the root of these.
        f"{include}/external/highwayhash",
        f"{include}/external/farmhash_archive/src",
    )
    compile_flags = (
        # TensorFlow's headers are not ours to be warned of.
        *(flag for folder in folders for flag in ("-isystem", folder)),
        *(f for f in tf.sysconfig.get_compile_flags() if f[:2] != "-I"),
        # As TensorFlow itself is compiled.
        "-DNDEBUG",
    )
    link_flags = tf.sysconfig.get_link_flags()
    # XLA lies in a library of its own, beside the one that is named there.
    framework = link_flags[-1]
    link_flags = (*link_flags, framework.replace("framework", "cc"))
    return _package(), compile_flags, link_flags


def _package():
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-intel"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    # A build of another name, say of the night.
    return metadata.packages_distributions()["tensorflow"][0]
