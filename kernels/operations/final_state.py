"""The state after the last step."""

import keras
from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.kernels import backends
from keras_linrec.kernels.exporting import kernel_of_loops
from keras_linrec.kernels.full_precision import matmul

# Steps in one product.
_BLOCK = 64
# The largest magnitude of a decay whose powers up to `_BLOCK` are far from
# infinity, which times a zero input would be NaN.
_LARGEST = 2.0


def with_final_state(scan):
    """Wrap a scan that returns outputs, to return the final state too."""

    def both(decay, inputs, initial_state, reverse=False, resets=None):
        outputs = scan(decay, inputs, initial_state, reverse, resets)
        last = 0 if reverse else -1
        return outputs, tuple(part[:, last] for part in outputs)

    return both


def final_state(
    kernel, decay, inputs, input_kernel, initial_state, reverse, resets=None
):
    """The final state for a time-invariant decay, without those of all steps.

    Args:
        kernel: `keras_linrec.kernels.registry.Kernel`.
        decay, input_kernel, initial_state: tuples of one tensor (real) or two
            (complex).
        inputs: tensor, (batch, time, features).
        reverse: the direction of the scan.
        resets: see `resets.py`. Defaults to `None`.
    """
    small = _squares(tuple(map(ops.stop_gradient, decay))) <= _LARGEST**2

    def by_blocks():
        # Where both functions run, and one is selected, an infinite power would
        # turn the gradient into NaN.
        bounded = tuple(ops.where(small, part, 0.0) for part in decay)
        operands = _in_order(inputs, initial_state, reverse, resets)
        return _by_blocks(kernel.scan, bounded, input_kernel, *operands)

    def by_steps():
        no_outputs = tuple(
            ops.zeros((*part.shape, 0), part.dtype) for part in decay
        )
        arguments = decay, inputs, input_kernel, no_outputs, initial_state
        return tuple(kernel.projected_scan(*arguments, reverse, resets)[1])

    if kernel_of_loops():
        # The converters keep no two dtypes apart within branches.
        return by_steps()
    return backends.current().choose(ops.all(small), by_blocks, by_steps)


def _squares(number):
    return sum(part * part for part in number)


def _in_order(inputs, initial_state, reverse, resets):
    """Inputs, states and resets in the order of the scan.

    Numbers on which the final state does not depend, because of a reset, are
    zero.
    """
    if reverse:
        inputs = ops.flip(inputs, axis=1)
    if resets is None:
        return inputs, initial_state, None
    if reverse:
        resets = ops.flip(resets, axis=1)
    count = ops.cumsum(resets, axis=1)
    is_dropped = ops.expand_dims(count < count[:, -1:], -1)
    return (
        ops.where(is_dropped, 0.0, inputs),
        tuple(
            ops.where(count[:, -1:] > 0, 0.0, part) for part in initial_state
        ),
        resets,
    )


def _by_blocks(scan, decay, input_kernel, inputs, initial_state, resets):
    """A product for each block of steps, and a step of a scan.

    A block of steps adds sum_l decay^(last - l) * (inputs_l @ input_kernel) to
    the state, which is one product of the block's inputs with a matrix. A
    length that is unknown before the call is padded to whole blocks.
    """
    features, channels = input_kernel[0].shape
    block = _block_of(inputs.shape[1])
    batch, time, _ = ops.shape(inputs)
    blocks = -(-time // block)
    # Padding before the first step; the initial state enters after it.
    missing = blocks * block - time
    is_whole = isinstance(missing, int) and missing == 0
    if not is_whole:
        inputs = ops.pad(inputs, [[0, 0], [missing, 0], [0, 0]])
    # Rows of a matrix: TensorFlow would compute the gradient of the weights for
    # every row of the batch, and sum.
    inputs = ops.reshape(inputs, (-1, block * features))

    power, remainder = _powers(decay, block + 1)
    weights = multiply(
        tuple(ops.expand_dims(ops.flip(part[:-1], 0), 1) for part in power),
        tuple(ops.expand_dims(part, 0) for part in input_kernel),
    )
    # In full precision, because the weights are powers of the decay.
    added = matmul(
        inputs,
        ops.concatenate(
            [ops.reshape(part, (-1, channels)) for part in weights], axis=1
        ),
    )
    added = ops.reshape(added, (batch, blocks, len(decay) * channels))
    added = tuple(ops.split(added, len(decay), axis=-1))
    entering = multiply(
        tuple(ops.take(part, block - missing, axis=0) for part in power),
        initial_state,
    )
    if isinstance(blocks, int) and blocks == 1:
        # XLA aborts at second derivatives of the empty rest below.
        return tuple(part[:, 0] + state for part, state in zip(added, entering))
    added = tuple(
        ops.concatenate([part[:, :1] + state[:, None], part[:, 1:]], axis=1)
        for part, state in zip(added, entering)
    )
    factor = tuple(part[-1] for part in power)
    if remainder is not None:
        added = multiply(_growth(factor, remainder, blocks), added)
    zero = tuple(ops.zeros_like(part) for part in entering)
    if resets is not None:
        # Nothing passes a reset, not even an infinite gradient.
        if not is_whole:
            resets = ops.pad(resets, [[0, 0], [missing, 0]])
        resets = ops.max(ops.reshape(resets, (batch, blocks, block)), axis=-1)
    _, state = scan(factor, added, zero, False, resets)
    return tuple(state)


def _block_of(time):
    """The steps of a block, or 64 if their number is not known.

    Blocks that need no padding save a copy of the inputs.
    """
    if time is None:
        return _BLOCK
    sizes = range(_BLOCK, _BLOCK // 2, -1)
    whole = (size for size in sizes if time % size == 0)
    return next(whole, min(_BLOCK, time))


def _powers(decay, count):
    """The powers below `count`, and what the last has lost by rounding."""
    if keras.backend.standardize_dtype(decay[0].dtype) == "float64":
        return backends.current().powers_with_remainder(decay, count)[0], None
    return backends.current().powers_with_remainder(decay, count)


def _growth(factor, remainder, blocks):
    """What the scan's rounded factor leaves out on the way to the last block.

    A number that enters at block k is multiplied blocks - 1 - k times, by
    factor + remainder = factor (1 + ratio). A step of a scan in float32 leaves
    out 1 + ratio, whose powers are exp((blocks - 1 - k) ratio), because the
    ratio is at most 1e-7. It is constant with respect to the decay: gradients
    pass through the factor.

    Returns:
        A tuple of tensors (blocks, channels).
    """
    factor = tuple(map(ops.stop_gradient, factor))
    # A factor of nearly zero is applied once: its digits are not missed.
    square = _squares(factor)
    inverse = 1.0 / ops.where(square > 1e-30, square, 1.0)
    conjugate = factor[0], *(-part for part in factor[1:])
    ratio = multiply(remainder, tuple(part * inverse for part in conjugate))
    steps = ops.cast(ops.arange(blocks - 1, -1, -1), factor[0].dtype)
    steps = ops.expand_dims(steps, -1)
    exponent = tuple(steps * part for part in ratio)
    growth = ops.exp(exponent[0])
    if len(exponent) == 1:
        return (growth,)
    return growth * ops.cos(exponent[1]), growth * ops.sin(exponent[1])
