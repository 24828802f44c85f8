"""The state after the last step, without computing those of earlier steps."""

from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import powers
from keras_linrec.kernels.full_precision import matmul

# Steps in one product. Powers of the decay up to this exponent are computed by
# squaring, which loses few digits.
_BLOCK = 64


def final_state(scan, decay, inputs, input_kernel, initial_state, reverse):
    """The final state of `projected_scan` for a time-invariant decay.

    A block of steps adds sum_l decay^(last - l) * (inputs_l @ input_kernel) to
    the state, which is one product of the block's inputs with a matrix; the
    scan takes one step per block. A length that is unknown before the call is
    padded to whole blocks, for which the decay's 64th power has to be finite:
    a magnitude of at most 4.

    Args:
        scan: as in `keras_linrec.kernels.projected_scan.projected_scan`.
        decay, input_kernel, initial_state: tuples of one tensor (real) or two
            (complex).
        inputs: tensor, (batch, time, features).
        reverse: the direction of the scan.
    """
    if reverse:
        inputs = ops.flip(inputs, axis=1)
    features, channels = input_kernel[0].shape
    block = min(_BLOCK, inputs.shape[1] or _BLOCK)
    batch, time, _ = ops.shape(inputs)
    blocks = -(-time // block)
    # Padding before the first step; the initial state enters after it.
    missing = blocks * block - time
    inputs = ops.pad(inputs, [[0, 0], [missing, 0], [0, 0]])
    # Rows of a matrix: TensorFlow would compute the gradient of the weights for
    # every row of the batch, and sum.
    inputs = ops.reshape(inputs, (-1, block * features))

    power = powers(decay, block + 1)
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
    zero = tuple(ops.zeros_like(part) for part in entering)
    _, state = scan(tuple(part[-1] for part in power), added, zero, False)
    return state
