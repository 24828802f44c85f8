"""The flags that the adapter needs in addition to the core's."""

from importlib import metadata


def flags():
    """The framework's package, flags to compile with, flags to link with."""
    import tensorflow as tf

    include = tf.sysconfig.get_include()
    folders = (
        include,
        # TensorFlow's headers include others relative to these folders.
        f"{include}/external/highwayhash",
        f"{include}/external/farmhash_archive/src",
    )
    compile_flags = (
        # As system headers, so that TensorFlow's own raise no warnings.
        *(flag for folder in folders for flag in ("-isystem", folder)),
        *(f for f in tf.sysconfig.get_compile_flags() if f[:2] != "-I"),
        # As TensorFlow itself is compiled.
        "-DNDEBUG",
    )
    link_flags = tf.sysconfig.get_link_flags()
    # XLA is in a separate library beside the one that the flags name.
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
    # A build under another name, such as a nightly one.
    return metadata.packages_distributions()["tensorflow"][0]
