"""The C++ core: the scan at the speed of memory, the fused projected scan, and
the impulse response of structured systems.

`source/` holds the code, `build.py` compiles it on first use and keeps the
result, `core.py` calls it with plain pointers. A framework's own folder binds
it: `kernels/jax/native.py` and its like.
"""


def block_length(columns):
    """Steps in a block of the fused projected scan.

    A tile of a block by `columns` numbers (channels, twice if complex) is
    256 KiB in float32, so that a thread's tiles stay in its cache: at
    (4, 16384, 96, 128 columns, 96) blocks of 32, 96 and 384 steps take 33.6,
    30.5 and 28.5 ms, forward and backward.
    """
    return min(384, max(48, 2**16 // max(columns, 1) // 48 * 48))


def checkpoint_count(time, block):
    """States that a row keeps for the backward pass: see `source/core.h`."""
    return time // block + 2


class BuildError(RuntimeError):
    """Native code that cannot be compiled here; the message says why."""


class UnsupportedPlatform(RuntimeError):
    """Native code that is not meant for this device or system."""
