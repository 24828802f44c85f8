"""The causal convolution and its gradients as sums, in float64."""

import numpy as np


def causal_convolution(inputs, response):
    """y[b, t, h, m] = sum_k response[h, m, k] inputs[b, t - k, h]."""
    time = inputs.shape[1]
    outputs = np.zeros((*inputs.shape, response.shape[1]))
    for lag in range(min(response.shape[2], time)):
        outputs[:, lag:] += (
            response[:, :, lag] * inputs[:, : time - lag, :, None]
        )
    return outputs


def gradients(inputs, response, d_outputs):
    """Those of sum(d_outputs * outputs)."""
    time = inputs.shape[1]
    d_inputs, d_response = np.zeros(inputs.shape), np.zeros(response.shape)
    for lag in range(min(response.shape[2], time)):
        later = d_outputs[:, lag:]
        earlier = inputs[:, : time - lag]
        d_inputs[:, : time - lag] += np.einsum(
            "hm,bthm->bth", response[:, :, lag], later
        )
        d_response[:, :, lag] = np.einsum("bth,bthm->hm", earlier, later)
    return d_inputs, d_response
