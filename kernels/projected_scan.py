"""The plain form of a projected scan: a product, a scan, a product.

It computes the same as the fused kernels, in `keras.ops`: for second
derivatives, and where no fused kernel runs.
"""

from keras import ops

from keras_linrec.double_precision import product


def with_final_state(scan):
    """Wrap a scan that returns outputs, to return the final state too."""

    def both(decay, inputs, initial_state, reverse=False, resets=None):
        outputs = scan(decay, inputs, initial_state, reverse, resets)
        last = 0 if reverse else -1
        return outputs, tuple(part[:, last] for part in outputs)

    return both


def projected_scan(
    scan,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """`(outputs, final_state)` of scan(inputs @ input_kernel) @ output_kernel.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse, resets)` on tuples
            of tensors, which returns `(outputs, final_state)`.
        decay, input_kernel, output_kernel, initial_state: tuples of one
            tensor (real) or two (complex, of which the outputs keep the real
            part).
        inputs: tensor, (batch, time, features).
        reverse: the direction of the scan.
        resets: see `resets.py`. Defaults to `None`.
    """
    if len(decay) == 1:
        states, final_state = scan(
            decay,
            (product(inputs, input_kernel[0]),),
            initial_state,
            reverse,
            resets,
        )
        return product(states[0], output_kernel[0]), final_state
    # One product for both parts reads the inputs once instead of twice.
    projected = product(inputs, ops.concatenate(input_kernel, axis=1))
    states, final_state = scan(
        decay,
        tuple(ops.split(projected, 2, axis=-1)),
        initial_state,
        reverse,
        resets,
    )
    real, imag = output_kernel
    outputs = product(
        ops.concatenate(states, axis=-1),
        ops.concatenate([real, -imag], axis=0),
    )
    return outputs, final_state
