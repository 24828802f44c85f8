"""Which kernels exist here, and which one runs."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from functools import partial
from typing import NamedTuple

import keras
import numpy as np

from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.self_test import relative_error

KERNELS = ("native", "associative", "sequential", "reference")

_VARIABLE = "KERAS_LINREC_KERNEL"

# The kernels of this process, and what their self-tests showed, by name.
_loaded = {}
_checked = {}
# What was chosen, by backend and wish. PyTorch's compiler follows a look-up
# here, and no import.
_selected = {}

# Among which devices the time of sequences is shared, if it is.
_devices = None


class Kernel(NamedTuple):
    """One way of running the hot path.

    The scans take and return tuples of one tensor (real) or two (complex),
    but for `inputs` and outputs of `projected_scan`, which are one.
    """

    scan: Callable  # decay, inputs, initial_state, reverse
    projected_scan: Callable  # decay, inputs, input_kernel, output_kernel, ...
    # p, d, q, t, b, timescale, output_matrix, time, alpha; where it is None,
    # `keras_linrec.ops.impulse_response` has the portable form.
    impulse_response: Callable | None = None
    # dynamics, operands, keep_all: what `plain_nonlinear_scan` computes; where
    # it is None, that one runs.
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


def select(name=None, whole=False):
    """The kernel to run, a `Kernel`.

    `name` is one of `KERNELS`, "auto", or `None` for what the environment
    variable `KERAS_LINREC_KERNEL` says. `whole` says that what it will scan is
    no time, which devices could share.

    A kernel that cannot run here is replaced by the fastest that does, with
    one warning; the results are the same.
    """
    name = os.environ.get(_VARIABLE, "auto") if name is None else name
    if name not in ("auto", *KERNELS):
        raise ValueError(
            f"`{_VARIABLE}` should name a kernel: 'auto' or one of "
            f"{KERNELS}. Received: {_VARIABLE}={name}"
        )
    if exporting():
        # What is exported is run where this library may not be.
        return _select(_preferred())
    if _devices is None or whole:
        return _select(name)
    return _backend_kernels().over_devices(_select(name), _devices)


def _select(name):
    wish = keras.backend.backend(), name
    if wish in _selected:
        return _selected[wish]
    candidates = ("native", _preferred(), "sequential", "reference")
    if name != "auto":
        candidates = (name, *candidates)
    for candidate in candidates:
        check = _check(candidate)
        if check:
            if candidate in _checked:
                _selected[wish] = load(candidate)
            return load(candidate)
        # That a device has no native kernels is news only to who asked.
        if check.failed or candidate == name:
            _warn_once(candidate)
    raise RuntimeError(
        "No kernel gives right numbers on the "
        f"{keras.backend.backend()} backend: {_reasons()}"
    )


@contextmanager
def sequence_parallel(mesh, time_axis, batch_axis):
    """What `keras_linrec.config.sequence_parallel` says."""
    global _devices
    backend = keras.backend.backend()
    if backend != "jax":
        raise ValueError(
            "`sequence_parallel` runs on the JAX backend of Keras. "
            f"Received: backend={backend}"
        )
    before = _devices
    devices = _backend_kernels().devices(mesh, time_axis, batch_axis)
    with devices.context():
        _devices = devices
        try:
            yield
        finally:
            _devices = before


_EXPORTERS = (
    "keras.src.export",
    "tensorflow.python.saved_model.save",
    "jax._src.export",
    "torch.onnx",
)
# By backend, what says whether a function is traced for a file.
_tracing = {}


def exporting():
    """Whether this is called from within `model.export` or one of its like.

    `torch.export` by itself keeps custom operators, and is not among them.
    """
    if keras.backend.backend() == "torch":
        if "torch" not in _tracing:
            _tracing["torch"] = _backend_kernels().tracing
        # PyTorch's compiler follows no walk through frames.
        if not _tracing["torch"]():
            return False
    return any(True for _ in _frames_of(_EXPORTERS))


def require_exportable(layer, whole=True):
    """Raise where a layer's part of a file would be wrong, or not load.

    Args:
        layer: the layer's name.
        whole: whether it is called with whole sequences, or with one step.
    """
    backend = keras.backend.backend()
    if backend == "jax" or not exporting():
        return
    for frame in _frames_of(("keras.src.export.onnx", "torch.onnx")):
        if backend == "tensorflow":
            raise ValueError(
                f"The layer '{layer}' cannot be exported to ONNX from "
                "TensorFlow: what tf2onnx makes of loops is wrong or does not "
                "load. Load the model under PyTorch and export it there, or "
                "export a SavedModel. Received: format='onnx'"
            )
        # PyTorch's older exporter, which Keras takes for sizes that are not
        # fixed, writes loops over time out as it finds them.
        axes = frame.f_locals.get("dynamic_axes")
        if whole and axes:
            raise ValueError(
                f"The layer '{layer}' can be exported to ONNX from PyTorch "
                "for one batch size and one number of steps only. Give "
                "`model.export` an `input_signature` in which both are fixed; "
                "export what `keras_linrec.export_step(model)` returns, which "
                "takes any batch; or export a SavedModel under TensorFlow or "
                f"JAX. Received: inputs with the dynamic axes {axes}"
            )


def _frames_of(modules):
    """The callers, from the inside out, that are from modules named so."""
    frame = sys._getframe()
    while frame:
        if frame.f_globals.get("__name__", "").startswith(modules):
            yield frame
        frame = frame.f_back


def _reasons():
    return {name: check.reason for name, check in available().items()}


def _preferred():
    return _backend_kernels().preferred()


def _backend_kernels():
    backend = keras.backend.backend()
    if backend not in ("jax", "tensorflow", "torch"):
        raise ValueError(
            "keras_linrec runs on the 'jax', 'tensorflow' and 'torch' "
            f"backends of Keras. Received: backend={backend}"
        )
    return importlib.import_module(f"{__package__}.{backend}")


def load(name):
    """The `Kernel` of that name, unchecked; raises where it cannot be had."""
    if name not in _loaded:
        _loaded[name] = _kernel(name)
    return _loaded[name]


def _kernel(name):
    if name == "native":
        module = _backend_kernels().compiled()
        return _with_projection(
            module.scan,
            getattr(module, "projected_scan", None),
            getattr(module, "impulse_response", None),
            getattr(module, "nonlinear_scan", None),
        )
    if name == "reference":
        from keras_linrec.kernels import reference

        return _with_projection(projection.with_final_state(reference.scan))
    return _with_projection(
        projection.with_final_state(getattr(_backend_kernels(), name))
    )


def _with_projection(
    scan, projected_scan=None, impulse_response=None, nonlinear_scan=None
):
    return Kernel(
        scan,
        projected_scan or partial(projection.projected_scan, scan),
        impulse_response,
        nonlinear_scan,
    )


def plain_nonlinear_scan(dynamics, operands, keep_all=True, resets=None):
    """The states of all steps, which count only if `keep_all`, and the last.

    Args:
        dynamics, operands: as `nonlinear_recurrence` has them.
        keep_all: whether somebody wants more than the last state.
        resets: as `nonlinear_recurrence.recurrence` has it.
    """
    loop = _backend_kernels().loop
    return nonlinear_recurrence.with_last_state(
        loop, dynamics, operands, resets
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
    """The result of a check, on PyTorch out of reach of the caller's modes.

    Those belong to a thread. Within `torch.utils.checkpoint`, a gradient
    would compute again all that the checkpoint holds, this check with it.
    """
    if keras.backend.backend() != "torch":
        return check()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(check).result()


def _run_check(kernel):
    try:
        with _concrete():
            error = relative_error(kernel, _backend_kernels().vjp)
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


def _values_can_be_read():
    """Whether a gradient is to be had here, and its value."""
    try:
        with _concrete():
            one = keras.ops.convert_to_tensor(np.ones(1, "float32"))
            _, slope = _backend_kernels().vjp(
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


def _concrete():
    """A scope in which tensors have values, even inside a traced function."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.ensure_compile_time_eval()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    return _concrete_torch()


@contextmanager
def _concrete_torch():
    import torch

    # Keras traces shapes on PyTorch's meta device, which holds no values; and
    # in inference mode there are no gradients to check.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with keras.device(device), torch.inference_mode(False):
        yield
