"""Pooling over time: of whole sequences, of their parts and step by step.

The states of a pooling are what was pooled so far, (batch, features), zeros
at first, and the number of steps, (batch, 1). A mean also has what rounding
took from the two, (batch, features + 1), which the next step gives back:
otherwise a mean over millions of steps, and their number beyond 2**24, would
not move.
"""

from keras import ops

from keras_linrec.double_precision import cumulative_sum
from keras_linrec.double_precision import maximum
from keras_linrec.double_precision import mean
from keras_linrec.ops.masks import packing

# Over the steps that count.
OF_MASKED = {
    "mean": packing.mean,
    "max": packing.max_pool,
    "last": packing.last,
}
POOLINGS = tuple(OF_MASKED)


def pool(kind, outputs, mask=None):
    """Pool (batch, time, features) over the steps that count.

    A row that is masked throughout gives zeros.
    """
    if mask is not None:
        return OF_MASKED[kind](outputs, mask)
    if kind == "mean":
        return mean(outputs, axis=1)
    return outputs[:, -1] if kind == "last" else ops.amax(outputs, axis=1)


def initial_states(kind, batch_size, features, dtype):
    """The states before the first step."""
    widths = (features, 1, features + 1) if kind == "mean" else (features, 1)
    return [ops.zeros((batch_size, width), dtype=dtype) for width in widths]


def pool_step(kind, inputs, states):
    """The states after one more step, (batch, features)."""
    pooled, count, *_ = states
    if kind == "mean":
        change = (inputs - pooled) / (count + 1)
        return _advanced_mean(states, change, ops.ones_like(count))
    if kind == "max":
        # The initial zeros are not a step.
        pooled = ops.where(count > 0, maximum(pooled, inputs), inputs)
    else:
        pooled = inputs
    return [pooled, count + 1]


def pool_part(kind, outputs, states, mask=None):
    """Pool up to each step of a part of a sequence.

    Args:
        kind: one of `POOLINGS`.
        outputs: (batch, time, features).
        states: those before the part.
        mask: boolean, (batch, time), true where a step counts, or `None`.

    Returns:
        `(pooled, states)`: (batch, time, features), at a masked step what was
        pooled before it, and the states after the part.
    """
    if kind == "last" and mask is None:
        time = ops.cast(ops.shape(outputs)[1], states[1].dtype)
        return outputs, [outputs[:, -1], states[1] + time]
    counts = ops.ones_like(outputs[:, :, :1])
    if mask is not None:
        counts = packing.zero_masked(counts, mask)
        outputs = packing.zero_masked(outputs, mask)
    before, seen = ops.expand_dims(states[0], 1), ops.expand_dims(states[1], 1)
    totals = seen + cumulative_sum(counts, 1)
    if kind == "mean":
        changes = _changes_of_mean(outputs, counts, before, totals)
        steps = ops.sum(counts, axis=1)
        after = _advanced_mean(states, changes[:, -1], steps)
        return before + changes, after
    run = _running_max if kind == "max" else _running_last
    pooled = run(outputs, counts, before, seen, totals)
    return pooled, [pooled[:, -1], totals[:, -1]]


def _advanced_mean(states, change, steps):
    """The states of a mean after a change of it, by so many steps."""
    pooled, count, rest = states
    pooled, rest_of_mean = _add(pooled, change, rest[:, :-1])
    count, rest_of_count = _add(count, steps, rest[:, -1:])
    rest = ops.concatenate([rest_of_mean, rest_of_count], axis=-1)
    return [pooled, count, rest]


def _add(total, change, rest):
    """The total, and what rounding took from it (Kahan's summation)."""
    change = change + rest
    new = total + change
    return new, change - (new - total)


def repeat_last(outputs, mask):
    """(batch, time, features), where masked steps repeat the one before them.

    Those before the first that counts are zero.
    """
    batch, _, features = ops.shape(outputs)
    states = initial_states("last", batch, features, outputs.dtype)
    return pool_part("last", outputs, states, mask)[0]


def _changes_of_mean(outputs, counts, before, totals):
    # Sums of differences from the earlier mean, as single steps compute it.
    changes = cumulative_sum(counts * (outputs - before), 1)
    return changes / ops.where(totals > 0, totals, 1.0)


def _running_max(outputs, counts, before, seen, totals):
    outputs = ops.where(counts > 0, outputs, float("-inf"))
    before = ops.where(seen > 0, before, float("-inf"))
    outputs = cumulative_max(ops.concatenate([before, outputs], axis=1))
    return ops.where(totals > 0, outputs[:, 1:], 0.0)


def _running_last(outputs, counts, before, seen, totals):
    position = ops.arange(0, ops.shape(outputs)[1], dtype="int32")[None]
    # The latest step that counts, as an index into what stands below.
    latest = ops.where(counts[:, :, 0] > 0, position + 1, 0)
    latest = cumulative_max(latest[:, :, None])[:, :, 0]
    return packing.take(ops.concatenate([before, outputs], axis=1), latest)


def cumulative_max(values):
    """The maxima up to each step of (batch, time, features)."""
    time = ops.shape(values)[1]
    position = ops.arange(0, time, dtype="int32")

    def widened(values, width):
        """Windows of twice the width, or from the first step on."""
        earlier = ops.take(values, ops.maximum(position - width, 0), axis=1)
        return maximum(values, earlier)

    if isinstance(time, int):
        for exponent in range((time - 1).bit_length()):
            values = widened(values, 2**exponent)
        return values
    return ops.while_loop(
        lambda values, width: width < time,
        lambda values, width: (widened(values, width), 2 * width),
        (values, ops.convert_to_tensor(1, "int32")),
    )[0]
