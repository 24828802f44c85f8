"""The gradient of a scan, which is a scan in the opposite direction.

For h_t = a_t h_{t-1} + b_t and cotangents g_t of h_t, the cotangents of b are

    l_t = conj(a_{t+1}) l_{t+1} + g_t,

those of a_t are l_t conj(h_{t-1}), and that of the initial state is
conj(a_1) l_1. Where a step is reset, nothing passes to the one before.
The portable kernels of every framework use this as their
backward pass, and the native ones use it for second derivatives. It calls the
differentiable scan, so derivatives of any order exist.
"""

from functools import partial

from keras import ops

from keras_linrec.complex_pairs import conjugate
from keras_linrec.complex_pairs import multiply
from keras_linrec.kernels.resets import of_adjoint
from keras_linrec.kernels.resets import unused_at
from keras_linrec.kernels.resets import zero_at


def adjoint(
    scan,
    decay,
    outputs,
    initial_state,
    cotangents,
    reverse,
    d_final_state=None,
    resets=None,
    total=None,
):
    """Cotangents of `(decay, inputs, initial_state)`, each a tuple.

    Args:
        scan: the differentiable scan, `scan(decay, inputs, initial_state,
            reverse, resets)` on tuples of tensors.
        decay, outputs, initial_state: arguments and outputs of the forward
            pass.
        cotangents: those of `outputs`, (batch, time, channels) each.
        reverse: the direction of the forward pass.
        d_final_state: cotangents of the final state, (batch, channels) each,
            if the scan also returned the final state.
        resets: those of the forward pass, or `None`.
        total: sums a sequence over rows and steps. Defaults to `None`, the
            sum of Keras.
    """
    if d_final_state is not None:
        cotangents = _with_final(cotangents, d_final_state, reverse)
    decay = conjugate(unused_at(resets, decay))
    zeros = tuple(ops.zeros_like(state) for state in initial_state)
    d_inputs = scan(
        _next(decay, reverse),
        cotangents,
        zeros,
        not reverse,
        of_adjoint(resets, reverse),
    )
    before = _previous(outputs, initial_state, reverse)
    d_decay = zero_at(resets, multiply(d_inputs, conjugate(before)))
    if _time_invariant(decay):
        total = total or partial(ops.sum, axis=(0, 1))
        d_decay = tuple(total(part) for part in d_decay)
    first = -1 if reverse else 0
    d_initial_state = multiply(
        _at(decay, first), tuple(part[:, first] for part in d_inputs)
    )
    if resets is not None:
        is_reset = resets[:, first, None] != 0
        d_initial_state = tuple(
            ops.where(is_reset, 0.0, part) for part in d_initial_state
        )
    return d_decay, d_inputs, d_initial_state


def _with_final(cotangents, d_final_state, reverse):
    """Add the final state's cotangent to that of the last output."""

    def add(part, last):
        last = last[:, None]
        if reverse:
            return ops.concatenate([part[:, :1] + last, part[:, 1:]], 1)
        return ops.concatenate([part[:, :-1], part[:, -1:] + last], 1)

    return tuple(add(*both) for both in zip(cotangents, d_final_state))


def _time_invariant(decay):
    return len(decay[0].shape) == 1


def _at(decay, step):
    if _time_invariant(decay):
        return decay
    return tuple(part[:, step] for part in decay)


def _next(decay, reverse):
    """The decay of the step after each step; the last entry is arbitrary."""
    if _time_invariant(decay):
        return decay
    # The adjoint scan starts from zero, so the decay of its first step does
    # not matter: the step's own decay fills the place.
    if reverse:
        return tuple(
            ops.concatenate([part[:, :1], part[:, :-1]], axis=1)
            for part in decay
        )
    return tuple(
        ops.concatenate([part[:, 1:], part[:, -1:]], axis=1) for part in decay
    )


def _previous(outputs, initial_state, reverse):
    """The state before each step."""
    pairs = zip(outputs, initial_state)
    if reverse:
        return tuple(
            ops.concatenate([part[:, 1:], state[:, None]], axis=1)
            for part, state in pairs
        )
    return tuple(
        ops.concatenate([state[:, None], part[:, :-1]], axis=1)
        for part, state in pairs
    )
