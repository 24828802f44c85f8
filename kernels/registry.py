"""The kernels that exist here, and whether they pass their self-test."""

import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from functools import partial

import keras
import numpy as np

from keras_linrec.kernels import backends
from keras_linrec.kernels import reference
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import table
from keras_linrec.kernels.operations import OPERATIONS
from keras_linrec.kernels.operations import projected_scan as projection
from keras_linrec.kernels.operations.final_state import with_final_state
from keras_linrec.kernels.self_test import relative_error
from keras_linrec.kernels.self_test import tolerance
from keras_linrec.settings import KERNELS

# The kernels of this process and the results of their self-tests, by name.
_loaded = {}
_checked = {}
# The kernel that runs, by backend and requested name. PyTorch's compiler can
# trace a look-up but not an import.
_chosen = {}


_FUNCTIONS = [operation.function for operation in OPERATIONS.values()]
_REFERENCES = {
    operation.function: operation.reference
    for operation in OPERATIONS.values()
    if operation.reference
}


class Kernel(
    namedtuple("Kernel", _FUNCTIONS, defaults=[None] * len(_FUNCTIONS))
):
    """One implementation of the hot path: a function for each operation.

    The file of an operation in `operations` has its arguments, and the form
    that runs where the function is `None`. The scans take and return tuples of
    one tensor (real) or two (complex), except `inputs` and outputs of
    `projected_scan`, which are single tensors.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Availability:
    """Whether a kernel can run here; if not, why, and how to fix it."""

    available: bool
    reason: str = ""
    # Whether it should have run. Native code on an unsupported device, for
    # example, has not failed.
    failed: bool = False

    def __bool__(self):
        return self.available


def available() -> dict[str, Availability]:
    """The kernels of the current backend.

    Returns:
        A dict from each name of `KERNELS` to an `Availability`, which is true
        if the kernel runs and otherwise has a `reason`. A kernel counts as
        available once it has passed a self-test on a tiny case.

    Example:

    >>> from keras_linrec import kernels
    >>> bool(kernels.available()["reference"])
    True
    """
    return {name: _check(name) for name in KERNELS}


def portable():
    """The name of the faster portable kernel."""
    return backends.current().preferred()


def choose(requested):
    """The name of the kernel that runs if `requested` is set.

    A kernel that cannot run here is replaced by the fastest one that can, with
    one warning; the results are the same.

    Args:
        requested: one of `KERNELS`, or `"auto"`.
    """
    key = keras.backend.backend(), requested
    if key in _chosen:
        return _chosen[key]
    candidates = ("native", portable(), "sequential", "reference")
    if requested != "auto":
        candidates = (requested, *candidates)
    for candidate in candidates:
        check = _check(candidate)
        if check:
            if candidate in _checked:
                _chosen[key] = candidate
            return candidate
        # If a device has no native kernels, warn only if they were requested.
        if check.failed or candidate == requested:
            _warn_once(candidate)
    reasons = {name: check.reason for name, check in available().items()}
    raise RuntimeError(
        f"No kernel passes its self-test on the {keras.backend.backend()} "
        f"backend: {reasons}"
    )


# PyTorch's compiler cannot trace a self-test. It calls a function with this
# mark as it is, and its result is a constant of the program. The function that
# sets the mark, `torch.compiler.assume_constant_result`, imports the compiler.
choose._dynamo_marked_constant = True


def load(name):
    """The `Kernel` of that name, unchecked; raises if it cannot be loaded."""
    if name not in _loaded:
        _loaded[name] = _kernel(name)
    return _loaded[name]


def _kernel(name):
    if name == "native":
        return _with_projection(**backends.current().compiled().FUNCTIONS)
    if name == "reference":
        scan, others = reference.scan, _REFERENCES
    else:
        scan, others = getattr(backends.current(), name), {}
    return _with_projection(with_final_state(scan), **others)


def _with_projection(scan, projected_scan=None, **others):
    """A `Kernel`, with the plain form of a projected scan if it has none."""
    plain = partial(projection.projected_scan, scan)
    projected_scan = projected_scan or plain
    return Kernel(scan=scan, projected_scan=projected_scan, **others)


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
    if not _in_a_thread(_values_can_be_read):
        # Some tracers keep even constants abstract (`torch.export`) or forbid
        # gradients (`torch.func`). A kernel that cannot be checked now runs
        # unchecked, and is checked at the next opportunity.
        return Availability(True)
    _checked[name] = _in_a_thread(partial(_run_check, name, kernel))
    return _checked[name]


def _in_a_thread(check):
    """The result of a check that runs in a thread of its own.

    Tracing modes belong to a thread. In a new one tensors have values even if
    the caller is being traced, and `torch.utils.checkpoint` does not record the
    check as part of what it recomputes.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(check).result()


def _run_check(name, kernel):
    platform = platform_of(name)
    try:
        with backends.current().checking():
            error = error_on(platform, kernel)
    except Exception as failure:
        return Availability(
            False,
            f"its self-test failed with {type(failure).__name__}: {failure}; "
            "choose another kernel, or report it with this message",
            failed=True,
        )
    if not error < tolerance(name, platform):
        return Availability(
            False,
            f"its self-test gave wrong numbers (relative error {error:.1e}); "
            "choose another kernel, or report it with this message",
            failed=True,
        )
    return Availability(True)


def platform_of(name):
    """The platform on which a kernel runs here."""
    backend = backends.current()
    return backend.native_platform() if name == "native" else backend.platform()


def error_on(platform, kernel):
    """The error of the operations that `resolver.py` runs on a platform."""
    vjp = backends.current().vjp
    kernel = on_platform(platform, kernel)
    return relative_error(kernel, vjp, on_cpu=platform == "cpu")


def on_platform(platform, kernel):
    """The `Kernel` with the functions that `resolver.py` runs on a platform."""
    if platform == "cpu":
        return kernel

    def runs_here(name, function):
        if function is None:
            return False
        # A reference is of `keras.ops`, and runs anywhere.
        is_reference = function is _REFERENCES.get(name)
        return is_reference or (platform == "cuda" and table.runs_on_cuda(name))

    # Kernels that are not native have little but the scan.
    others = {
        name: function
        for name, function in kernel._asdict().items()
        if name not in ("scan", "projected_scan") and runs_here(name, function)
    }
    return _with_projection(kernel.scan, **others)


def _values_can_be_read():
    """Whether gradients can be computed here, and their values read."""
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
        f"backend: {_check(name).reason}. Another kernel replaces it: the "
        "results are the same, the speed is not. Select a kernel with "
        "`keras_linrec.config.set_kernel` to silence this warning.",
        RuntimeWarning,
        stacklevel=4,
    )
