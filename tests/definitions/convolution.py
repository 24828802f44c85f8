"""The causal convolution and its gradients as sums, in float64."""

import numpy as np
from scipy.special import erfc


def _normal(x):
    """The normal distribution."""
    return 0.5 * erfc(-x / np.sqrt(2))


def _density(x):
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def _logistic(x):
    return 1 / (1 + np.exp(-x))


# By name, the values and the slopes. The leak is Keras' for leaky ReLUs.
ACTIVATIONS = {
    "linear": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    "leaky_relu": (
        lambda x: np.where(x > 0, x, 0.2 * x),
        lambda x: np.where(x > 0, 1, 0.2),
    ),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": (_logistic, lambda x: _logistic(x) * _logistic(-x)),
    "gelu": (
        lambda x: x * _normal(x),
        lambda x: _normal(x) + x * _density(x),
    ),
}


def causal_convolution(inputs, response, activation="linear"):
    """The activation of sum_k response[h, m, k] inputs[b, t - k, h]."""
    value, _ = ACTIVATIONS[activation]
    return value(_sums(inputs, response))


def gradients(inputs, response, d_outputs, activation="linear"):
    """Those of sum(d_outputs * outputs)."""
    _, slope = ACTIVATIONS[activation]
    d_sums = d_outputs * slope(_sums(inputs, response))
    time = inputs.shape[1]
    d_inputs, d_response = np.zeros(inputs.shape), np.zeros(response.shape)
    for lag in range(min(response.shape[2], time)):
        later = d_sums[:, lag:]
        earlier = inputs[:, : time - lag]
        d_inputs[:, : time - lag] += np.einsum(
            "hm,bthm->bth", response[:, :, lag], later
        )
        d_response[:, :, lag] = np.einsum("bth,bthm->hm", earlier, later)
    return d_inputs, d_response


def _sums(inputs, response):
    time = inputs.shape[1]
    sums = np.zeros((*inputs.shape, response.shape[1]))
    for lag in range(min(response.shape[2], time)):
        sums[:, lag:] += response[:, :, lag] * inputs[:, : time - lag, :, None]
    return sums
