"""The plain form of a projected scan: a product, a scan, a product.

What the fused kernels compute, written on `keras.ops`: it runs where there is
no fused kernel, and where one is differentiated twice.
"""

from keras import ops


def with_final_state(scan):
    """A scan that returns its outputs, as one that returns both."""

    def both(decay, inputs, initial_state, reverse=False):
        outputs = scan(decay, inputs, initial_state, reverse)
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
):
    """`(outputs, final_state)` of scan(inputs @ input_kernel) @ output_kernel.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`.
        decay, input_kernel, output_kernel, initial_state: tuples of one
            tensor (real) or two (complex, of which the outputs keep the real
            part).
        inputs: tensor, (batch, time, features).
        reverse: the direction of the scan.
    """
    if len(decay) == 1:
        states, final_state = scan(
            decay, (inputs @ input_kernel[0],), initial_state, reverse
        )
        return states[0] @ output_kernel[0], final_state
    # One product each way over both parts: half the passes over the inputs.
    projected = inputs @ ops.concatenate(input_kernel, axis=1)
    states, final_state = scan(
        decay, tuple(ops.split(projected, 2, axis=-1)), initial_state, reverse
    )
    real, imag = output_kernel
    outputs = ops.concatenate(states, axis=-1) @ ops.concatenate(
        [real, -imag], axis=0
    )
    return outputs, final_state
