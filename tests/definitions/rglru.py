"""RG-LRU as its paper writes it: De et al. 2024, section 2.4, in float64.

Appendix A writes the decay as here, by a softplus.
"""

import numpy as np


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def rglru(weights, inputs, state=None):
    """h_t of all steps, and the last one."""
    big_lambda = weights["decay_parameter"]
    blocks, width, _ = weights["decay_kernel"].shape
    batch, time, _ = inputs.shape
    if "projection_kernel" in weights:
        inputs = inputs @ weights["projection_kernel"]
    h = np.zeros((batch, blocks * width)) if state is None else state
    outputs = np.zeros((batch, time, blocks * width))

    def block_diagonal(name, x):
        parts = np.split(x, blocks, axis=-1)
        kernels = weights[f"{name}_kernel"]
        products = [part @ kernel for part, kernel in zip(parts, kernels)]
        return np.concatenate(products, -1) + weights.get(f"{name}_bias", 0)

    for step in range(time):
        x = inputs[:, step]
        r = sigmoid(block_diagonal("decay", x))
        i = sigmoid(block_diagonal("gate", x))
        log_a = -8 * np.log1p(np.exp(big_lambda)) * r
        # sqrt(1 - a^2), of which near a = 1 no digit would be left.
        scale = np.sqrt(-np.expm1(2 * log_a))
        h = np.exp(log_a) * h + scale * (i * x)
        outputs[:, step] = h
    return outputs, h
