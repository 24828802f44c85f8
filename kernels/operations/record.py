"""What the resolver knows of a call, and of an operation."""

from collections.abc import Callable
from typing import NamedTuple

import keras

from keras_linrec.kernels import backends


class Case(NamedTuple):
    """The properties of a call that determine how it runs."""

    operation: str  # a key of `OPERATIONS`
    # "cpu", "cuda" or "tpu". On JAX this is the default platform; programs
    # compiled for another one run in portable form (`jax/lowering.py`).
    platform: str = "cpu"
    dtype: str = "float32"
    batch: int | None = None
    # `None` if unknown before the call; a symbol while exporting for any
    # length.
    time: int | None = None
    channels: int | None = None  # real numbers in a state
    # Whether the outputs of all steps are needed.
    keep_all: bool = True
    # Whether the decay varies over time.
    per_step: bool = False
    # Whether the states are dropped before some steps.
    resets: bool = False
    # For nonlinear scans: whether the native kernels have the activation, and
    # whether it acts on pairs.
    known_activation: bool = True
    pairs: bool = False
    # Whether custom operators can run on these tensors now.
    operators: bool = True
    # Whether a compiler would unroll a loop over time.
    unrolled: bool = False
    # Whether the scan runs along time, which devices may share.
    along_time: bool = True


class Operation(NamedTuple):
    """How an operation runs: the one place that lists its forms."""

    # The name of a kernel's function for it, a field of the registry's
    # `Kernel`.
    function: str
    # From a `Case` and a `Kernel`, `(form, reason)`; the reason is empty for
    # the kernel's own form.
    choose: Callable
    # By form, from a `Kernel` the function that computes the operation.
    forms: dict
    # From a `Kernel`, the plain form.
    plain: Callable
    # From a `Kernel`, the tiny cases that it has to pass before its first use:
    # each gives `(function, arrays, cotangents, expected)`, in which the
    # expected outputs and gradients come from NumPy.
    self_tests: tuple
    # `call_native(run, *arguments)`: the operation by native code, where
    # `run(call, *quantities)` runs a call of `native/table.py` and returns the
    # results that have cotangents.
    call_native: Callable
    # `call_plain(kernel, call, *quantities)`: the same results, in operations
    # that frameworks differentiate. `kernel` is a `Kernel` with these scans.
    call_plain: Callable
    # `call_plain_gradient(kernel, call, quantities)`, by name: the gradient in
    # such operations. Defaults to `None`, that of `call_plain`.
    call_plain_gradient: Callable | None = None
    # The function of the reference kernel, in `keras.ops`. Defaults to `None`:
    # its scan in the plain form.
    reference: Callable | None = None
    # From a `Kernel`, what runs on this device where the kernel has no such
    # function. Defaults to `None`, the plain form.
    instead: Callable | None = None
    # Odd sizes of the first case, for the check of a device.
    odd_sizes: tuple = ()
    # Further tests, of what only CPUs run.
    self_tests_on_cpu: tuple = ()
    # Whether it runs along time, which devices may share.
    along_time: bool = True


def uses_pallas(case):
    """Whether the native kernels of a case are those of Pallas."""
    if keras.backend.backend() != "jax":
        return False
    return backends.current().uses_pallas(case.platform)


def is_short(case):
    """Whether there are too few steps for a fused kernel to pay.

    The products of the plain forms process all rows of a batch at once: forward
    and backward of a single step at (32, 1, 128) with 128 complex channels take
    0.15 ms plain and 0.42 fused, on JAX. The native nonlinear scan rearranges
    the weights in every call.
    """
    is_short = isinstance(case.time, int) and case.time < 4
    return is_short and not case.unrolled


def is_symbol(size):
    """Whether a size is a variable of a program that is exported."""
    return not isinstance(size, (int, type(None)))


def fused(
    case,
    function,
    otherwise,
    reason_on_devices="no fused kernel for this device yet",
    fixed=False,
    on_gpus=False,
):
    """The form "fused" if a kernel's function can run a case.

    Args:
        case: `Case`.
        function: the kernel's function, or `None`.
        otherwise: the form that runs otherwise.
        reason_on_devices: why the fused form does not run on a GPU or TPU.
        fixed: whether the function needs a length that is known before the
            call.
        on_gpus: whether the CUDA core has the function too.
    """
    if function is None:
        return otherwise, "this kernel has no fused form"
    if fixed and not isinstance(case.time, int):
        return otherwise, "the length is unknown"
    if case.dtype not in ("float32", "float64"):
        return otherwise, "no fused kernel for this dtype"
    if case.platform == "cpu" or (case.platform == "cuda" and on_gpus):
        return "fused", ""
    return otherwise, reason_on_devices
