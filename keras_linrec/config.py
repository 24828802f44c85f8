"""Settings of the package."""

from keras_linrec.kernels import KERNELS

_kernel = None


def set_kernel(kernel):
    """Choose how the scans run.

    Results do not depend on the choice, up to rounding; speed and memory do.
    A model that is already compiled keeps the kernel it was compiled with.
    A kernel that does not run here is replaced, with one warning:
    `keras_linrec.kernels.available()` says why.

    Args:
        kernel: `"auto"` (the fastest that runs here, by measurement),
            `"native"` (compiled code), `"associative"` (parallel in time),
            `"sequential"` (one step after another), `"reference"` (the plain
            definition), or `None` to follow the environment variable
            `KERAS_LINREC_KERNEL` again, which is `"auto"` where it is unset.

    Raises:
        ValueError: if there is no such kernel.

    Example:

    >>> import keras_linrec
    >>> keras_linrec.config.set_kernel("sequential")
    >>> keras_linrec.config.get_kernel()
    'sequential'
    >>> keras_linrec.config.set_kernel(None)
    """
    global _kernel
    if kernel not in (None, "auto", *KERNELS):
        raise ValueError(
            f"`kernel` should be None, 'auto' or one of {KERNELS}. "
            f"Received: kernel={kernel}"
        )
    _kernel = kernel


def get_kernel():
    """The kernel set by `set_kernel`, or `None`."""
    return _kernel
