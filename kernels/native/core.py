"""Calls of the core with plain addresses: `base/core.h` through ctypes."""

import ctypes

from keras_linrec.kernels.native import build


def call(name, flags, sizes, arrays, results):
    """Run a function of the core on addresses of contiguous arrays.

    Args:
        name: that of the function.
        flags: see `call_encoding.py`, with the number type.
        sizes: integers, or the result of `table.sizes_of`.
        arrays, results: lists of addresses.

    Raises:
        MemoryError: if the core runs out of memory.
        ValueError: if the sizes do not fit together.
        RuntimeError: if the core fails otherwise.
    """
    status = getattr(build.core(), name)(
        ctypes.c_int(flags),
        as_sizes(sizes),
        (ctypes.c_void_p * len(arrays))(*arrays),
        (ctypes.c_void_p * len(results))(*results),
    )
    if status == 1:
        raise MemoryError(f"{name} ran out of memory for sizes {tuple(sizes)}")
    if status == 3:
        raise RuntimeError(f"{name} failed for sizes {tuple(sizes)}")
    if status:
        raise ValueError(
            f"{name} expects sizes that fit together. Received: "
            f"sizes={tuple(sizes)}"
        )


def as_sizes(sizes):
    """Integers as the core takes them; those of a table's call are already."""
    if isinstance(sizes, ctypes.Array):
        return sizes
    return (ctypes.c_int64 * len(sizes))(*sizes)


def description():
    """The instruction set and the number of threads, in words."""
    core = build.core()
    core.keras_linrec_instruction_set.restype = ctypes.c_char_p
    name = core.keras_linrec_instruction_set().decode()
    return f"{name} instructions, {core.keras_linrec_threads()} threads"
