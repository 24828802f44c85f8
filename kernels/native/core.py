"""Calls of the core with plain addresses: `source/core.h` through ctypes."""

import ctypes

from keras_linrec.kernels.native import build

FUNCTIONS = (
    "keras_linrec_scan",
    "keras_linrec_scan_backward",
    "keras_linrec_projected_scan",
    "keras_linrec_projected_scan_backward",
    "keras_linrec_impulse_response",
    "keras_linrec_impulse_response_backward",
    "keras_linrec_varying_response",
    "keras_linrec_varying_response_backward",
    "keras_linrec_carried_response",
    "keras_linrec_carried_response_backward",
    "keras_linrec_causal_convolution",
    "keras_linrec_causal_convolution_backward",
    "keras_linrec_move_steps",
    "keras_linrec_nonlinear_scan",
    "keras_linrec_nonlinear_scan_backward",
)


def call(name, flags, sizes, arrays, results):
    """Run a function of the core on addresses of contiguous arrays.

    Raises:
        MemoryError: if the core runs out of memory.
        ValueError: if the sizes do not fit together.
        RuntimeError: if the core fails otherwise.
    """
    status = getattr(build.core(), name)(
        ctypes.c_int(flags),
        (ctypes.c_int64 * len(sizes))(*sizes),
        (ctypes.c_void_p * len(arrays))(*arrays),
        (ctypes.c_void_p * len(results))(*results),
    )
    if status == 1:
        raise MemoryError(f"{name} ran out of memory for sizes {sizes}")
    if status == 3:
        raise RuntimeError(f"{name} failed for sizes {sizes}")
    if status:
        raise ValueError(
            f"{name} expects sizes that fit together. Received: sizes={sizes}"
        )


def description():
    """The instruction set and the number of threads, in words."""
    core = build.core()
    core.keras_linrec_instruction_set.restype = ctypes.c_char_p
    name = core.keras_linrec_instruction_set().decode()
    return f"{name} instructions, {core.keras_linrec_threads()} threads"
