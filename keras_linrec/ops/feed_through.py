"""Feedthrough of inputs to outputs, in the same pass as the scan."""

from keras import ops

from keras_linrec.double_precision import product

# Up to this many inputs, extra channels in the scan cost less than another pass
# over inputs and outputs.
_FEATURES_MAX = 32


def feed_through(run, feedthrough, arguments, options):
    """Run a projected scan and add inputs[..., :count] @ feedthrough.

    If the system is complex and time-invariant and `count` is small, these
    inputs become additional channels of decay 0, two inputs per complex
    channel, so that the kernel adds their part while it holds a block of
    inputs and outputs. Forward and backward pass of an LDStack on JAX,
    (4, 16384), take a quarter less time than with a separate product, whose
    gradient XLA computes from a transposed copy of all cotangents.

    Args:
        run: a kernel's function.
        feedthrough: tensor (count, units).
        arguments: tuple of decay, inputs, input_kernel, output_kernel and
            initial_state; all but the inputs are tuples of tensors.
        options: the kernel's further arguments, from the direction on.
    """
    decay, inputs, input_kernel, output_kernel, initial_state = arguments
    count, features = feedthrough.shape[0], inputs.shape[2]
    is_fixed = len(decay[0].shape) == 1
    if len(decay) == 1 or not is_fixed or count > _FEATURES_MAX:
        outputs, state = run(*arguments, *options)
        direct = product(inputs[..., :count], feedthrough)
        return outputs + direct, state
    channels = input_kernel[0].shape[1]
    selection = ops.eye(features, count, dtype=inputs.dtype)
    into = (selection[:, 0::2], selection[:, 1::2])
    if count % 2:
        into = into[0], ops.pad(into[1], [[0, 0], [0, 1]])
        feedthrough = ops.pad(feedthrough, [[0, 1], [0, 0]])
    out = (feedthrough[0::2], -feedthrough[1::2])

    def concatenate(parts, others, axis):
        return tuple(
            ops.concatenate(both, axis=axis) for both in zip(parts, others)
        )

    zero_decay = ops.zeros_like(into[0][0])
    rows = ops.shape(initial_state[0])[0]
    zero_state = ops.zeros((rows, zero_decay.shape[0]), inputs.dtype)
    outputs, state = run(
        concatenate(decay, (zero_decay, zero_decay), 0),
        inputs,
        concatenate(input_kernel, into, 1),
        concatenate(output_kernel, out, 0),
        concatenate(initial_state, (zero_state, zero_state), 1),
        *options,
    )
    return outputs, tuple(part[:, :channels] for part in state)
