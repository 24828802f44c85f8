"""A causal depthwise convolution of the last K inputs, in float64.

The temporal convolution of De et al. 2024, section 2.3, and that of
`keras.layers.DepthwiseConv1D` after K - 1 zeros.
"""

import numpy as np


def causal_convolution(
    weights, inputs, before=None, kernel_size=4, activation=lambda y: y
):
    """y_t of all steps, and the last K - 1 inputs."""
    kernel = weights["kernel"]
    if "projection_kernel" in weights:
        inputs = inputs @ weights["projection_kernel"]
    batch, time, units = inputs.shape
    if before is None:
        before = np.zeros((batch, kernel_size - 1, units))
    outputs = np.zeros((batch, time, units))
    for row in range(batch):
        for step in range(time):
            for tap in range(kernel_size):
                # How many steps back the tap reaches.
                back = kernel_size - 1 - tap
                if back > step:
                    # Before the first step, counted from the end.
                    x = before[row, step - back]
                else:
                    x = inputs[row, step - back]
                outputs[row, step] += kernel[tap] * x
    read = np.concatenate([before, inputs], axis=1)
    bias = weights.get("bias", 0)
    return activation(outputs + bias), read[:, time:]
