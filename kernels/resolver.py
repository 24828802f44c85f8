"""How an operation runs: `resolve` alone decides."""

import threading
from contextlib import contextmanager
from numbers import Integral
from typing import Any
from typing import NamedTuple

from keras_linrec import settings
from keras_linrec import types
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels.exporting import exporting
from keras_linrec.kernels.exporting import kernel_of_loops
from keras_linrec.kernels.operations import OPERATIONS
from keras_linrec.kernels.operations.record import Case as Case
from keras_linrec.kernels.operations.record import uses_pallas


class Decision(NamedTuple):
    """The kernel that runs, the form in which it runs, and the reason."""

    case: Case
    kernel: str
    form: str
    reason: str

    def __str__(self):
        case = self.case
        return (
            f"{case.operation} (batch {case.batch}, {case.time} steps, "
            f"{case.channels} channels, {case.dtype}, {case.platform}): "
            f"{self.kernel}, {self.form}: {self.reason}"
        )


def resolve(case):
    """The `Decision` for a `Case`."""
    name, reason = _kernel(case)
    choose = OPERATIONS[case.operation].choose
    form, form_reason = choose(case, registry.load(name))
    return Decision(case, name, form, form_reason or reason)


def _kernel(case):
    """The kernel's name, and the reason for it."""
    if exporting():
        name = kernel_of_loops() or registry.portable()
        return name, "for a file, which runs anywhere"
    if not case.operators:
        return registry.portable(), "custom operators do not run here"
    if case.operation == "linear_scan" and uses_pallas(case):
        # A GPU program takes about a microsecond per step, however few states
        # there are. A tree of products over time does more work in fewer steps.
        # Estimated, not measured.
        known = isinstance(case.time, int)
        known = known and None not in (case.batch, case.channels)
        if known and case.batch * case.channels < 2**12 < case.time:
            return "associative", "few states and many steps"
    requested = settings.requested_kernel()
    name = registry.choose(requested)
    if name == "native" and not backends.current().has_native(case.platform):
        return registry.portable(), "the CUDA core does not run here"
    if name == requested:
        return name, "requested"
    return name, "the fastest that runs here"


class _Listeners(threading.local):
    """The lists in which this thread's calls of `explain` collect decisions."""

    def __init__(self):
        self.lists = []


_listeners = _Listeners()


def implementation(case):
    """The function that computes a case from the operation's arguments."""
    decision = resolve(case)
    for listener in _listeners.lists:
        listener.append(decision)
    kernel = registry.on_platform(case.platform, registry.load(decision.kernel))
    operation = OPERATIONS[case.operation]
    if operation.along_time and case.along_time:
        kernel = backends.current().over_devices(kernel)
    run = operation.forms[decision.form](kernel)
    backend = backends.current()
    # Of the backends JAX has `shard_map`.
    if not hasattr(backend, "alike"):
        return run
    return lambda *arguments, **options: run(
        *backend.alike(arguments), **backend.alike(options)
    )


class Explanation(tuple):
    """The decisions that `explain` found, in order."""

    __slots__ = ()

    def __str__(self):
        return "\n".join(map(str, self))


def explain(
    what: Any, shape: types.Shape, dtype: str = "float32", **options: Any
) -> tuple[Decision, ...]:
    """How a layer, a model or an operation would run here, and why.

    Args:
        what: a layer or another function of one tensor, which is traced (on
            PyTorch, run on zeros), or the name of an operation, such as
            `"linear_scan"`. The error of any other name lists them.
        shape: the shape of the tensor; for an operation (batch, time,
            channels), where a complex channel counts as two.
        dtype: the dtype of the tensor. Defaults to `"float32"`.
        **options: for an operation, fields of `Case`, such as
            `per_step=True`.

    Returns:
        A tuple of `Decision`s, which prints one decision per line.

    Raises:
        ValueError: if `what` is neither callable nor the name of an operation,
            `shape` is not a tuple of integers, three of them for an operation,
            or an option is not a field of `Case`.

    Example:

    >>> import keras_linrec
    >>> from keras_linrec import kernels
    >>> layer = keras_linrec.layers.RotRNN(4, state_size=8, num_heads=2)
    >>> for decision in kernels.explain(layer, (2, 100, 3)):
    ...     print(decision.case.operation)
    projected_scan
    """
    if not isinstance(shape, (tuple, list)) or not all(
        isinstance(size, (Integral, type(None))) for size in shape
    ):
        raise ValueError(
            "`shape` should be a tuple of integers, or None for sizes that are "
            f"unknown. Received: shape={shape}"
        )
    if isinstance(what, str):
        if what not in OPERATIONS:
            raise ValueError(
                f"`what` should be a layer, a function or one of "
                f"{tuple(OPERATIONS)}. Received: what={what}"
            )
        if len(shape) != 3:
            raise ValueError(
                "`shape` should be (batch, time, channels) for an operation. "
                f"Received: shape={shape}"
            )
        _require_options(options, Case._fields)
        platform = (
            options.pop("platform", None) or backends.current().platform()
        )
        case = Case(what, platform, dtype, *shape)._replace(**options)
        return Explanation([resolve(case)])
    if not callable(what):
        raise ValueError(
            "`what` should be a layer, a function or one of "
            f"{tuple(OPERATIONS)}. Received: what={what}"
        )
    _require_options(options, ())
    with _listening() as decisions:
        backends.current().trace(what, tuple(shape), dtype)
    return Explanation(decisions)


def _require_options(options, known):
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            "`explain` takes fields of `Case` for an operation, and none for a "
            f"layer. Received: {unknown}"
        )


@contextmanager
def _listening():
    decisions = []
    _listeners.lists.append(decisions)
    try:
        yield decisions
    finally:
        _listeners.lists.remove(decisions)
