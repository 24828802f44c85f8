"""A short window over time: each step reads its input and a few before it."""

from keras import ops

from keras_linrec.double_precision import activate
from keras_linrec.ops.exportable import cuts_wrongly
from keras_linrec.ops.masks import packing
from keras_linrec.validation import require_count


def require_taps(kernel_size):
    """Raise unless a window of so many taps has states."""
    require_count("kernel_size", kernel_size)
    if kernel_size == 1:
        raise ValueError(
            "`kernel_size` should be 2 or more: a convolution of one tap has "
            "no states. Received: kernel_size=1"
        )


def short_convolution(
    steps, inputs, before, kernel, bias=None, activation=None
):
    """`(outputs, window)` of a causal convolution with a few taps a feature.

        y_t = activation(sum_k kernel[k] x_{t-K+1+k} + b)

    Args:
        steps: `Steps` without a mask. Behind a reset the window starts from
            zeros.
        inputs: (batch, time, features), x.
        before: (batch, K - 1, features), the x of the steps before the first;
            or `None`: zeros.
        kernel: (K, features).
        bias: (features,), b. Defaults to `None`, zero.
        activation: function. Defaults to `None`, the identity.

    Returns:
        `(outputs, last)`, of which `last()` is what to start the next part of
        the sequences from, (batch, K - 1, features).
    """
    if before is None:
        batch, _, features = ops.shape(inputs)
        shape = batch, kernel.shape[0] - 1, features
        before = ops.zeros(shape, inputs.dtype)
    if cuts_wrongly(ops.shape(inputs)[1]):
        return _by_steps(steps, inputs, before, kernel, bias, activation)
    window = _Window(steps, before, inputs)
    parts = (window.from_step(index) for index in range(kernel.shape[0]))
    return _read(parts, kernel, bias, activation), window.last


def short_convolution_step(inputs, before, kernel, bias=None, activation=None):
    """The same for a single step, (batch, features).

    Returns:
        `(outputs, after)`.
    """
    window = ops.concatenate([before, inputs[:, None]], axis=1)
    parts = (window[:, index] for index in range(kernel.shape[0]))
    return _read(parts, kernel, bias, activation), window[:, 1:]


def _by_steps(steps, inputs, before, *weights):
    """`short_convolution` as a loop over time."""
    runs, resets = packing.marks_of_steps(
        inputs, steps.lengths, steps.reset_mask
    )

    def step(before, now):
        inputs, resets, runs = now
        before = ops.where(resets[:, None, None], 0.0, before)
        outputs, after = short_convolution_step(inputs, before, *weights)
        return ops.where(runs[:, None, None], after, before), outputs

    by_step = ops.swapaxes(inputs, 0, 1), resets.T, runs.T
    last, outputs = ops.scan(step, before, by_step)
    return ops.swapaxes(outputs, 0, 1), lambda: last


def _read(parts, kernel, bias, activation):
    """The outputs, from what the window holds for each tap."""
    outputs = sum(part * kernel[index] for index, part in enumerate(parts))
    if bias is not None:
        outputs = outputs + bias
    return outputs if activation is None else activate(activation, outputs)


class _Window:
    """The inputs of sequences and those before them, as each step sees them.

    Args:
        steps: `Steps` without a mask.
        before: (batch, count, units), the inputs before the first step.
        inputs: (batch, time, units).
    """

    def __init__(self, steps, before, inputs):
        self.lengths = steps.lengths
        self.count = before.shape[1]
        self.inputs = ops.concatenate([before, inputs], axis=1)
        self.segments = None
        if steps.reset_mask is not None:
            segments = packing.segment_ids(steps.reset_mask)
            earlier = [ops.zeros_like(segments[:, :1])] * self.count
            self.segments = ops.concatenate([*earlier, segments], axis=1)

    def from_step(self, start):
        """As many inputs as steps, from `start` on, (batch, time, units).

        The last of them are those of the steps themselves.
        """
        return self._of_segments(self._slice(start), self._slice(self.count))

    def last(self):
        """The last inputs of each row, (batch, count, units)."""
        if self.lengths is None:
            # Not by the number of steps, which may be a symbol.
            ends = slice(-self.count, None)
            return self._of_segments(ends, slice(-1, None))
        index = ops.cast(self.lengths, "int32")[:, None]
        index = index + ops.arange(0, self.count, dtype="int32")
        return self._of_segments(index, index[:, -1:])

    def _slice(self, start):
        return slice(start, start - self.count or None)

    def _of_segments(self, steps, readers):
        """The inputs of steps; zeros, if they are not of the reader's segment.

        Args:
            steps, readers: slices of the time, or integers (batch, count).
        """
        inputs = _steps_of(self.inputs, steps)
        if self.segments is None:
            return inputs
        same = _steps_of(self.segments, steps) == _steps_of(
            self.segments, readers
        )
        return ops.where(ops.expand_dims(same, -1), inputs, 0.0)


def _steps_of(sequences, steps):
    if isinstance(steps, slice):
        return sequences[:, steps]
    return packing.take(sequences, steps)
