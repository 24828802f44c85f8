"""Which kernels exist here, and whether they give right numbers."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from functools import partial
from typing import NamedTuple

import keras
import numpy as np

from keras_linrec.kernels import backends
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels import reference
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.self_test import relative_error
from keras_linrec.settings import KERNELS

# The kernels of this process, and what their self-tests showed, by name.
_loaded = {}
_checked = {}
# The kernel that was chosen, by backend and wish. PyTorch's compiler follows a
# look-up here, and no import.
_chosen = {}


class Kernel(NamedTuple):
    """One way of running the hot path.

    The scans take and return tuples of one tensor (real) or two (complex),
    but for `inputs` and outputs of `projected_scan`, which are one.
    """

    scan: Callable  # decay, inputs, initial_state, reverse
    # decay, inputs, input_kernel, output_kernel, initial_state, reverse
    projected_scan: Callable
    # p, d, q, t, b, timescale, output_matrix, time, alpha; where it is None,
    # `keras_linrec.ops.impulse_response` has the portable form.
    impulse_response: Callable | None = None
    # inputs, response; where it is None, Fourier transforms of the framework
    # do it.
    causal_convolution: Callable | None = None
    # dynamics, operands, keep_all; where it is None, the loop of
    # `nonlinear_recurrence` runs.
    nonlinear_scan: Callable | None = None


@dataclass(frozen=True)
class Availability:
    """Whether a kernel can run here and, if it cannot, why and the mend."""

    available: bool
    reason: str = ""
    # Whether it should have run: not so, say, native code on another device.
    failed: bool = False

    def __bool__(self):
        return self.available


def available():
    """The kernels of the current backend.

    Returns:
        A dict from each name of `KERNELS` to an `Availability`, which is true
        where the kernel runs and otherwise has a `reason`. A kernel counts as
        available once a tiny case gave the right numbers.

    Example:

    >>> from keras_linrec import kernels
    >>> bool(kernels.available()["reference"])
    True
    """
    return {name: _check(name) for name in KERNELS}


def portable():
    """The name of the faster portable kernel."""
    return backends.current().preferred()


def choose(wish):
    """The name of the kernel that runs where `wish` was asked for.

    A kernel that cannot run here is replaced by the fastest that does, with
    one warning; the results are the same.

    Args:
        wish: one of `KERNELS`, or `"auto"`.
    """
    key = keras.backend.backend(), wish
    if key in _chosen:
        return _chosen[key]
    candidates = ("native", portable(), "sequential", "reference")
    if wish != "auto":
        candidates = (wish, *candidates)
    for candidate in candidates:
        check = _check(candidate)
        if check:
            if candidate in _checked:
                _chosen[key] = candidate
            return candidate
        # That a device has no native kernels is news only to who asked.
        if check.failed or candidate == wish:
            _warn_once(candidate)
    reasons = {name: check.reason for name, check in available().items()}
    raise RuntimeError(
        "No kernel gives right numbers on the "
        f"{keras.backend.backend()} backend: {reasons}"
    )


def load(name):
    """The `Kernel` of that name, unchecked; raises where it cannot be had."""
    if name not in _loaded:
        _loaded[name] = _kernel(name)
    return _loaded[name]


def _kernel(name):
    if name == "native":
        module = backends.current().compiled()
        return _with_projection(
            module.scan,
            getattr(module, "projected_scan", None),
            getattr(module, "impulse_response", None),
            getattr(module, "causal_convolution", None),
            getattr(module, "nonlinear_scan", None),
        )
    module = reference if name == "reference" else backends.current()
    scan = module.scan if name == "reference" else getattr(module, name)
    return _with_projection(projection.with_final_state(scan))


def _with_projection(
    scan,
    projected_scan=None,
    impulse_response=None,
    causal_convolution=None,
    nonlinear_scan=None,
):
    return Kernel(
        scan,
        projected_scan or partial(projection.projected_scan, scan),
        impulse_response,
        causal_convolution,
        nonlinear_scan,
    )


def _check(name):
    if name in _checked:
        return _checked[name]
    try:
        kernel = load(name)
    except Exception as failure:
        _checked[name] = Availability(
            False,
            f"{type(failure).__name__}: {failure}",
            failed=not isinstance(failure, UnsupportedPlatform),
        )
        return _checked[name]
    if not _aside(_values_can_be_read):
        # Some tracers keep even constants abstract (`torch.export`) or forbid
        # a gradient (`torch.func`). What cannot be checked now is used, and
        # checked the next time.
        return Availability(True)
    _checked[name] = _aside(partial(_run_check, kernel))
    return _checked[name]


def _aside(check):
    """The result of a check, out of reach of the caller's modes.

    Those belong to a thread: in one of its own, tensors have values though the
    caller is traced, and a gradient within `torch.utils.checkpoint` does not
    compute the check again with all that the checkpoint holds.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(check).result()


def _run_check(kernel):
    try:
        with backends.current().checking():
            error = _error_here(kernel)
    except Exception as failure:
        return Availability(
            False,
            f"it failed on a tiny case with {type(failure).__name__}: "
            f"{failure}; choose another, or report it with this message",
            failed=True,
        )
    if not error < 1e-5:
        return Availability(
            False,
            f"it gave wrong numbers on a tiny case (relative error "
            f"{error:.1e}); choose another, or report it with this message",
            failed=True,
        )
    return Availability(True)


def _error_here(kernel):
    """The error of what `resolver.py` lets a kernel run on this platform."""
    vjp = backends.current().vjp
    platform = backends.current().platform()
    if platform == "cpu":
        return relative_error(kernel, vjp)
    nonlinear_scan = kernel.nonlinear_scan if platform == "cuda" else None
    kernel = _with_projection(kernel.scan, nonlinear_scan=nonlinear_scan)
    return relative_error(kernel, vjp, pairs=False)


def _values_can_be_read():
    """Whether a gradient is to be had here, and its value."""
    try:
        with backends.current().checking():
            one = keras.ops.convert_to_tensor(np.ones(1, "float32"))
            _, slope = backends.current().vjp(
                lambda tensors: [tensors[0] * 3.0], [one], [one]
            )
            return float(keras.ops.convert_to_numpy(slope)[0]) == 3.0
    except Exception:
        return False


@cache
def _warn_once(name):
    warnings.warn(
        f"The kernel '{name}' does not run on the {keras.backend.backend()} "
        f"backend: {_check(name).reason}. Another kernel takes its place: "
        "results are the same, speed is not. "
        "`keras_linrec.config.set_kernel` chooses one for good.",
        RuntimeWarning,
        stacklevel=4,
    )
