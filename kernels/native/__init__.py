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


def few_steps(time):
    """Whether a scan is so short that its plain form is faster.

    The plain form's products take all rows of a batch at once: forward and
    backward of a single step at (32, 1, 128) with 128 complex channels take
    0.15 ms plain and 0.42 fused, on JAX. The native call of a nonlinear scan
    lays the weights out anew, which a few steps do not repay. A length that
    is not known may be any.
    """
    return isinstance(time, int) and time < 4


class BuildError(RuntimeError):
    """Native code that cannot be compiled here; the message says why."""


class UnsupportedPlatform(RuntimeError):
    """Native code that is not meant for this device or system."""
