"""Which kernels exist here, and which one runs."""

import importlib
import os
import warnings
from dataclasses import dataclass
from functools import cache

import keras
import numpy as np

KERNELS = ("native", "associative", "sequential", "reference")

_VARIABLE = "KERAS_LINREC_KERNEL"

# What the self-tests of this process showed, by the kernel's name.
_checked = {}


@dataclass(frozen=True)
class Availability:
    """Whether a kernel can run here and, if it cannot, why and the mend."""

    available: bool
    reason: str = ""

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


def select(name=None):
    """The scan to run: `scan(decay, inputs, initial_state, reverse)`.

    `name` is one of `KERNELS`, "auto", or `None` for what the environment
    variable `KERAS_LINREC_KERNEL` says.

    A kernel that cannot run here is replaced by the backend's preferred one,
    with one warning; the results are the same.
    """
    name = os.environ.get(_VARIABLE, "auto") if name is None else name
    if name not in ("auto", *KERNELS):
        raise ValueError(
            f"`{_VARIABLE}` should name a kernel: 'auto' or one of "
            f"{KERNELS}. Received: {_VARIABLE}={name}"
        )
    candidates = (_preferred(), "sequential", "reference")
    if name != "auto":
        candidates = (name, *candidates)
    for candidate in candidates:
        if _check(candidate):
            return _load(candidate)
        _warn_once(candidate)
    raise RuntimeError(
        "No kernel gives right numbers on the "
        f"{keras.backend.backend()} backend: {available()}"
    )


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


def _load(name):
    if name == "reference":
        from keras_linrec.kernels import reference

        return reference.scan
    return getattr(_backend_kernels(), name)


def _check(name):
    if name == "native":
        return Availability(
            False,
            "this version has no native kernels; choose 'auto' for the "
            "fastest of those it has",
        )
    if name not in _checked and not _values_can_be_read():
        # Some tracers (`torch.export`) keep even constants abstract. What
        # cannot be checked now is used, and checked the next time.
        return Availability(True)
    if name not in _checked:
        _checked[name] = _run_check(name)
    return _checked[name]


def _run_check(name):
    try:
        error = _self_test(_load(name))
    except Exception as failure:
        return Availability(
            False,
            f"it failed on a tiny case with {type(failure).__name__}: "
            f"{failure}; choose 'auto', or report it with this message",
        )
    if not error < 1e-5:
        return Availability(
            False,
            f"it gave wrong numbers on a tiny case (relative error "
            f"{error:.1e}); choose 'auto', or report it with this message",
        )
    return Availability(True)


def _values_can_be_read():
    try:
        with _concrete():
            one = keras.ops.convert_to_tensor(np.ones(1, "float32")) + 0.0
            return float(keras.ops.convert_to_numpy(one)[0]) == 1.0
    except Exception:
        return False


@cache
def _warn_once(name):
    warnings.warn(
        f"The kernel '{name}' does not run on the {keras.backend.backend()} "
        f"backend: {_check(name).reason}. Another kernel takes its place; "
        "results are the same.",
        RuntimeWarning,
        stacklevel=4,
    )


def _self_test(scan):
    """The largest relative error of a five-step complex scan."""
    with _concrete():
        generator = np.random.default_rng(0)
        decay, inputs, state = (
            generator.uniform(-0.7, 0.7, (2, *shape)).astype("float32")
            for shape in ((3,), (2, 5, 3), (2, 3))
        )
        outputs = scan(
            *(
                tuple(keras.ops.convert_to_tensor(part) for part in parts)
                for parts in (decay, inputs, state)
            )
        )
        outputs = [keras.ops.convert_to_numpy(part) for part in outputs]
    expected = state[0] + 1j * state[1]
    error = 0.0
    for step in range(5):
        expected = (decay[0] + 1j * decay[1]) * expected + (
            inputs[0, :, step] + 1j * inputs[1, :, step]
        )
        got = outputs[0][:, step] + 1j * outputs[1][:, step]
        error = max(error, abs(got - expected).max() / abs(expected).max())
    return error


def _concrete():
    """A scope in which tensors have values, even inside a traced function."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.ensure_compile_time_eval()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    import torch

    # Keras traces shapes on PyTorch's meta device, which holds no values.
    return keras.device("cuda" if torch.cuda.is_available() else "cpu")
