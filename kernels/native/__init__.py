"""The C++ core: linear scans at the speed of memory, fused projected scans,
nonlinear scans, and the impulse response of structured systems.

`source/` holds the code, a folder for each family of operations beside `base`,
`cuda` and the frameworks' `adapters`. `build.py` compiles it on first use and
caches the result, `cross.py` compiles it for other systems, and `core.py` calls
it with plain pointers. `table.py` reads what each operation takes and returns.
Each framework's folder has its bindings, such as `kernels/jax/native.py`.
"""

import math


def block_length(columns):
    """Steps in a block of the fused projected scan.

    `columns` counts real numbers: two for a complex channel. A block's tile of
    as many columns takes 256 KiB in float32, so that a thread's tiles stay in
    its cache: at (4, 16384, 96, 128 columns, 96) blocks of 32, 96 and 384 steps
    take 33.6, 30.5 and 28.5 ms, forward and backward.
    """
    return min(384, max(48, 2**16 // max(columns, 1) // 48 * 48))


def checkpoint_count(time, block):
    """States that a row stores for the backward pass: see `base/core.h`."""
    return time // block + 2


def irregular_block(time, state):
    """Steps in a block of a response whose steps differ in length.

    A block's quantities take 512 KiB, so that they stay in the cache: with 64
    numbers in a state, blocks of 8, 16 and 32 steps take 595, 575 and 615 ms
    (32, 784, 64), forward and backward. In long sequences blocks and
    checkpoints take memory of the order of the root of the time. `time` may be
    unknown, or a symbol.
    """
    known = isinstance(time, int)
    return max(8, 1024 // state, math.isqrt(time) // 2 if known else 32)


class BuildError(RuntimeError):
    """Native code could not be compiled here; the message says why."""


class UnsupportedPlatform(RuntimeError):
    """There is no native code for this device or operating system."""
