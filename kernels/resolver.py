"""How an operation runs: `resolve` alone decides."""

import threading
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from typing import NamedTuple

import keras

from keras_linrec import settings
from keras_linrec.kernels import backends
from keras_linrec.kernels import causal_convolution
from keras_linrec.kernels import impulse_response
from keras_linrec.kernels import move_steps
from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels import registry
from keras_linrec.kernels import varying_response
from keras_linrec.kernels.exporting import exporting
from keras_linrec.kernels.final_state import final_state


class Case(NamedTuple):
    """The properties of a call that determine how it runs."""

    operation: str  # a key of `_FORMS`
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
    choose = _CHOICES[case.operation]
    form, form_reason = choose(case, registry.load(name))
    return Decision(case, name, form, form_reason or reason)


def _kernel(case):
    """The kernel's name, and the reason for it."""
    if exporting():
        return registry.portable(), "for a file, which runs anywhere"
    if not case.operators:
        return registry.portable(), "custom operators do not run here"
    if case.operation == "linear_scan" and _uses_pallas(case):
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


def _uses_pallas(case):
    """Whether the native kernels of a case are those of Pallas."""
    if keras.backend.backend() != "jax":
        return False
    return backends.current().uses_pallas(case.platform)


def _form_of_linear_scan(case, kernel):
    return "scan", ""


def _form_of_projected_scan(case, kernel):
    if not (case.keep_all or case.per_step or _is_symbol(case.time)):
        return "blocks", "only the final state is needed"
    if _is_short(case):
        return "products", "a few steps"
    if case.platform == "cuda" and _has_sections(case):
        return "sections", "states of a section of time stay in the cache"
    if case.platform != "cpu":
        return "products", "no fused kernel for this device yet"
    return "fused", ""


def _form_of_impulse_response(case, kernel):
    if not case.operators and isinstance(case.time, int):
        return "scans", "the blocks have a custom gradient too"
    # In CUDA the gradient has 24 numbers for each entry of the state in a
    # block's memory, of which the smallest GPUs have 64 KiB.
    if case.platform == "cuda" and case.channels > 256:
        return "blocks", "the state is too large"
    return _fused(
        case,
        kernel.impulse_response,
        "blocks",
        fixed=True,
        on_gpus=not _uses_pallas(case),
    )


def _form_of_carried_response(case, kernel):
    return _fused(case, kernel.carried_response, "blocks")


def _form_of_varying_response(case, kernel):
    return _fused(case, kernel.varying_response, "blocks")


def _form_of_causal_convolution(case, kernel):
    reason = "the framework's transforms run on this device"
    return _fused(case, kernel.causal_convolution, "transforms", reason)


def _form_of_move_steps(case, kernel):
    reason = "gathers are fast on this device"
    return _fused(case, kernel.move_steps, "gathers", reason)


# From this many units on, a GPU computes products of all rows faster, despite
# their launches: a thread block of the CUDA core reads the recurrent matrix at
# each step. Estimated, not measured.
_LARGE_MATRIX = 512


def _form_of_nonlinear_scan(case, kernel):
    if kernel.nonlinear_scan is None:
        return "loop", "this kernel has no fused form"
    if not case.known_activation:
        return "loop", "the native kernels lack this activation"
    if _is_short(case):
        return "loop", "a few steps"
    if case.platform == "tpu" or _uses_pallas(case):
        return "loop", "XLA compiles the loop into one program"
    if case.platform != "cuda":
        return "fused", ""
    if case.pairs:
        return "loop", "an activation of pairs"
    if case.channels > _LARGE_MATRIX:
        return "loop", "the recurrent matrix is too large"
    return "fused", ""


def _is_short(case):
    """Whether there are too few steps for a fused kernel to pay.

    The products of the plain forms process all rows of a batch at once: forward
    and backward of a single step at (32, 1, 128) with 128 complex channels take
    0.15 ms plain and 0.42 fused, on JAX. The native nonlinear scan rearranges
    the weights in every call.
    """
    is_short = isinstance(case.time, int) and case.time < 4
    return is_short and not case.unrolled


# By operation: the name of its form for a case and a `Kernel`, and the reason,
# which is empty for the kernel's own form.
_CHOICES = {
    "linear_scan": _form_of_linear_scan,
    "projected_scan": _form_of_projected_scan,
    "nonlinear_scan": _form_of_nonlinear_scan,
    "causal_convolution": _form_of_causal_convolution,
    "move_steps": _form_of_move_steps,
    "varying_response": _form_of_varying_response,
    "carried_response": _form_of_carried_response,
    "impulse_response": _form_of_impulse_response,
}


def _fused(
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


def _has_sections(case):
    """Whether a projected scan can keep the states of some steps only."""
    symbols = _is_symbol(case.time) or _is_symbol(case.batch)
    return case.operators and not symbols


def _is_symbol(size):
    """Whether a size is a variable of a program that is exported."""
    return not isinstance(size, (int, type(None)))


def _blocks(kernel):
    """A projected scan that returns the final state alone."""

    def run(decay, inputs, input_kernel, _, *rest):
        return None, final_state(kernel, decay, inputs, input_kernel, *rest)

    return run


def _loop(kernel):
    """A nonlinear scan, one step after another."""

    def run(dynamics, operands, keep_all=True):
        loop = backends.current().loop
        return nonlinear_recurrence.with_last_state(loop, dynamics, operands)

    return run


# By operation and form: the function that takes a `Kernel` and returns the
# implementation.
_FORMS = {
    "linear_scan": {"scan": lambda kernel: kernel.scan},
    "projected_scan": {
        "fused": lambda kernel: kernel.projected_scan,
        "products": lambda kernel: partial(
            projection.projected_scan, kernel.scan
        ),
        "sections": lambda kernel: backends.current().by_sections(kernel.scan),
        "blocks": _blocks,
    },
    "nonlinear_scan": {
        "fused": lambda kernel: kernel.nonlinear_scan,
        "loop": _loop,
    },
    "causal_convolution": {
        "fused": lambda kernel: kernel.causal_convolution,
        "transforms": lambda kernel: causal_convolution.causal_convolution,
    },
    "move_steps": {
        "fused": lambda kernel: kernel.move_steps,
        "gathers": lambda kernel: move_steps.move_steps,
    },
    "varying_response": {
        "fused": lambda kernel: kernel.varying_response,
        "blocks": lambda kernel: partial(
            varying_response.varying_response, kernel.scan
        ),
    },
    # `ops.transition_powers` or `ops.packed_response` computes the blocks,
    # without a kernel.
    "carried_response": {
        "fused": lambda kernel: kernel.carried_response,
        "blocks": lambda kernel: None,
    },
    # `ops.impulse_response` computes the blocks itself, without a kernel.
    "impulse_response": {
        "fused": lambda kernel: kernel.impulse_response,
        "scans": lambda kernel: partial(
            impulse_response.impulse_response, kernel.scan
        ),
        "blocks": lambda kernel: None,
    },
}


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
    if case.along_time:
        kernel = backends.current().over_devices(kernel)
    return _FORMS[case.operation][decision.form](kernel)


class Explanation(tuple):
    """The decisions that `explain` found, in order."""

    __slots__ = ()

    def __str__(self):
        return "\n".join(map(str, self))


def explain(what, shape, dtype="float32", **options):
    """How a layer, a model or an operation would run here, and why.

    Args:
        what: a layer or another function of one tensor, which is traced (on
            PyTorch, run on zeros), or the name of an operation:
            `"linear_scan"`, `"projected_scan"`, `"nonlinear_scan"`,
            `"impulse_response"`, `"varying_response"`, `"carried_response"`,
            `"causal_convolution"` or `"move_steps"`.
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
        if what not in _FORMS:
            raise ValueError(
                f"`what` should be a layer, a function or one of "
                f"{tuple(_FORMS)}. Received: what={what}"
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
            f"`what` should be a layer, a function or one of {tuple(_FORMS)}. "
            f"Received: what={what}"
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
