"""Inputs that reach the outputs at once, in the same pass as the scan."""

from keras import ops

# The inputs up to which a product within the scan costs less than another pass
# over inputs and outputs.
_FEATURES_MAX = 32


def feed_through(projected_scan, feedthrough, arguments, reverse):
    """A `projected_scan` and what its first inputs add to the outputs.

    Few inputs of a complex, time-invariant system become states that forget at
    once, two of them a complex number, so that the kernel that has a block of
    inputs and outputs at hand adds their part. Forward and backward of an
    LDStack on JAX, (4, 16384), take a quarter less than with a product of its
    own, whose gradient XLA computes from a transposed copy of all cotangents.

    Args:
        projected_scan: that of a kernel.
        feedthrough: tensor (count, units).
        arguments: tuple of decay, inputs, input_kernel, output_kernel and
            initial_state, but for the inputs tuples of tensors.
        reverse: the direction of the scan.
    """
    decay, inputs, input_kernel, output_kernel, initial_state = arguments
    count, features = feedthrough.shape[0], inputs.shape[2]
    is_fixed = len(decay[0].shape) == 1
    if len(decay) == 1 or not is_fixed or count > _FEATURES_MAX:
        outputs, state = projected_scan(*arguments, reverse)
        return outputs + inputs[..., :count] @ feedthrough, state
    channels = input_kernel[0].shape[1]
    picked = ops.eye(features, count, dtype=inputs.dtype)
    added = (picked[:, 0::2], picked[:, 1::2])
    if count % 2:
        added = added[0], ops.pad(added[1], [[0, 0], [0, 1]])
        feedthrough = ops.pad(feedthrough, [[0, 1], [0, 0]])
    read = (feedthrough[0::2], -feedthrough[1::2])

    def wider(parts, others, axis):
        return tuple(
            ops.concatenate(both, axis=axis) for both in zip(parts, others)
        )

    nothing = ops.zeros_like(added[0][0])
    rows = ops.shape(initial_state[0])[0]
    empty = ops.zeros((rows, nothing.shape[0]), inputs.dtype)
    outputs, state = projected_scan(
        wider(decay, (nothing, nothing), 0),
        inputs,
        wider(input_kernel, added, 1),
        wider(output_kernel, read, 0),
        wider(initial_state, (empty, empty), 1),
        reverse,
    )
    return outputs, tuple(part[:, :channels] for part in state)
