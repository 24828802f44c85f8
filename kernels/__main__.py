"""python -m keras_linrec.kernels [build [ADAPTER ...] | check]

Without arguments, prints which kernels run on the current Keras backend, where
their compiled libraries come from, and why the others do not run. `build`
compiles the native code for every installed framework ahead of time, for
example in a container image; `KERAS_LINREC_CACHE_DIR` names the folder that
keeps it. Libraries that the package was installed with are not compiled again,
unless `KERAS_LINREC_PREBUILT` is "no". `check` compares every kernel with its
definition on this device and times it: a table for an issue.
"""

import argparse
import shutil
import sys
from importlib.util import find_spec


def main():
    parser = argparse.ArgumentParser(
        prog="python -m keras_linrec.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command")
    builder = commands.add_parser("build", help="compile ahead")
    builder.add_argument(
        "adapters",
        nargs="*",
        metavar="ADAPTER",
        help="core (all that PyTorch needs on a CPU), jax, tensorflow or "
        "cuda; by default, those of the installed frameworks",
    )
    commands.add_parser("check", help="compare with definitions, and time")
    arguments = parser.parse_args()
    if arguments.command == "build":
        sys.exit(build(arguments.adapters or installed()))
    if arguments.command == "check":
        from keras_linrec.kernels import device_check

        sys.exit(device_check.check())
    show()


def installed():
    """The adapters of the frameworks and compilers on this machine."""
    from keras_linrec.kernels.native import build as builder

    adapters = ["core"]
    adapters += [name for name in ("jax", "tensorflow") if find_spec(name)]
    nvcc = builder.nvcc()
    frameworks = map(find_spec, ("jax", "tensorflow", "torch"))
    if any(frameworks) and shutil.which(nvcc[0]):
        adapters.append("cuda")
    return adapters


def build(adapters):
    """Build the adapters; return the number of failures."""
    from keras_linrec.kernels.native import build as builder

    failures = 0
    for adapter, result, seconds in builder.build(adapters):
        if isinstance(result, Exception):
            failures += 1
            print(f"{adapter}: not built: {result}", file=sys.stderr)
        else:
            print(f"{adapter}: {result} ({seconds:.1f} s)")
    return failures


def show():
    import keras

    from keras_linrec import kernels
    from keras_linrec import settings

    print(f"keras_linrec's kernels on the {keras.backend.backend()} backend:")
    chosen = kernels.registry.choose(settings.requested_kernel())
    for name, availability in kernels.available().items():
        if not availability:
            state = f"not available: {availability.reason}"
        elif name == chosen:
            state = "available, in use"
        else:
            state = "available"
        if name == "native" and availability:
            state += f" ({_native()})"
        print(f"  {name}: {state}")
        if name == "native":
            _show_libraries()
    if chosen not in kernels.KERNELS:
        print(f"  {chosen}: in use; associative or sequential, by platform")


def _native():
    from keras_linrec.kernels.native import cache
    from keras_linrec.kernels.native import core

    return f"{core.description()}; cache {cache.folder()}"


def _show_libraries():
    from keras_linrec.kernels.native import build as builder

    for adapter, origin in builder.origins.items():
        print(f"    {adapter}: {origin}")


if __name__ == "__main__":
    main()
