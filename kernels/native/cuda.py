"""Calls of the CUDA core with plain addresses: `source/cuda/cuda_core.h`.

The kernels are compiled once, for all GPUs, by `python -m keras_linrec.kernels
build cuda`. To run them, a machine needs neither nvcc nor CUDA's headers, but
the driver of its GPU.
"""

import ctypes
import sys
import warnings
from functools import cache
from pathlib import Path

from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native.core import as_sizes
from keras_linrec.kernels.native.table import operations

# The driver library and the file of kernels, if not the usual ones. Tests set
# them to a driver that emulates a GPU.
driver = None
kernels = None


@cache
def core():
    """The core, with its kernels for the GPU loaded.

    Raises:
        UnsupportedPlatform: if there is no driver here.
        BuildError: if there are no kernels here.
    """
    library = build.core()
    usual = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    contents = kernels
    if contents is None:
        contents = build.load("cuda", lambda path: Path(path).read_bytes())
    for operation in operations():
        name = f"keras_linrec_cuda_{operation}_scratch"
        if hasattr(library, name):
            getattr(library, name).restype = ctypes.c_int64
    path = (driver or usual).encode()
    if library.keras_linrec_cuda_open(
        path, contents, ctypes.c_int64(len(contents))
    ):
        raise UnsupportedPlatform(_message(library))
    return library


@cache
def is_here():
    """Whether the core runs here; if not, there is a warning.

    Where there is a GPU, the kernels for the CPU do not depend on it.
    """
    try:
        core()
        return True
    except (build.BuildError, UnsupportedPlatform, OSError) as failure:
        warnings.warn(
            f"The kernel 'native' does not run on this GPU: {failure}. The "
            "kernel 'associative' replaces it there: the results are the same, "
            "the speed is not.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False


def name_of(function, suffix=""):
    """The name of the function in the CUDA core."""
    return function.replace("keras_linrec_", "keras_linrec_cuda_") + suffix


def _message(library):
    library.keras_linrec_cuda_message.restype = ctypes.c_char_p
    return library.keras_linrec_cuda_message().decode()


def scratch_bytes(name, flags, sizes):
    """The bytes of scratch memory that a call needs."""
    function = getattr(core(), name_of(name, "_scratch"), None)
    if function is None:
        return 0
    return function(ctypes.c_int(flags), as_sizes(sizes))


def call(name, flags, sizes, arrays, results, scratch, stream):
    """Queue a function's kernels, on addresses of contiguous arrays.

    Raises:
        RuntimeError: if they do not start.
        ValueError: if the CUDA core cannot run this call.
    """
    status = getattr(core(), name_of(name))(
        ctypes.c_int(flags),
        as_sizes(sizes),
        (ctypes.c_void_p * len(arrays))(*arrays),
        (ctypes.c_void_p * len(results))(*results),
        ctypes.c_void_p(scratch),
        ctypes.c_void_p(stream),
    )
    if status == 2:
        raise ValueError(
            f"{name} does not run on GPUs with these flags. Received: "
            f"flags={flags}, sizes={tuple(sizes)}"
        )
    if status:
        raise RuntimeError(
            f"{name} did not start on the GPU: {_message(core())}"
        )
