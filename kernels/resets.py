"""Steps before which a recurrence drops its state, whatever that was.

Kernels take resets as a tensor (batch, time) in the dtype of the inputs. Where
it is not 0, the state is dropped before that step, in the order of the scan. No
resets are `None`, or a tensor (0, 0) where a call needs one.
"""

from keras import ops


def are_given(resets):
    """Whether a tensor of resets has any entries."""
    return tuple(resets.shape) != (0, 0)


def or_none(resets):
    """The resets, or `None` where a call has none."""
    return resets if are_given(resets) else None


def or_empty(resets, like):
    """The resets, or for `None` the tensor that a call needs."""
    return ops.zeros((0, 0), like.dtype) if resets is None else resets


def segment_ids(resets):
    """The number of resets up to and including each step, (batch, time)."""
    return ops.cumsum(ops.cast(resets, "int32"), axis=1)


def of_adjoint(resets, reverse):
    """The resets of the adjoint of a scan, which runs the other way."""
    if resets is None:
        return None
    nowhere = ops.zeros_like(resets[:, :1])
    if reverse:
        return ops.concatenate([nowhere, resets[:, :-1]], axis=1)
    return ops.concatenate([resets[:, 1:], nowhere], axis=1)


def zero_at(resets, parts):
    """Numbers (batch, time, channels), zero at resets even if they are NaN."""
    if resets is None:
        return parts
    marks = ops.expand_dims(resets != 0, -1)
    return tuple(ops.where(marks, 0.0, part) for part in parts)


def unused_at(resets, decay):
    """A decay, zero at resets if it is one for each step."""
    return zero_at(resets, decay) if len(decay[0].shape) == 3 else decay
