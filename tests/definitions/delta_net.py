"""DeltaNet, gated or not, and DeltaProduct, step by step in float64.

Yang et al. 2024 (2412.06464), equation 10; Siems et al. 2025 (2502.10297),
section 3, for several products a step. The layer around it is that of figure 1
of the former: a short convolution, SiLU, norms, and the output gate.
"""

import numpy as np


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, x)


def shifted(window, entering):
    """What a convolution has read last, once it has read a step more."""
    return np.concatenate([window[:, 1:], entering[:, None]], axis=1)


def rms_normalised(x, epsilon=1e-5):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)


def unit_norm(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + 1e-6)


def delta_net(
    weights,
    inputs,
    before=None,
    S=None,
    num_heads=4,
    key_dim=32,
    key_heads=None,
    reflections=1,
    negative_eigenvalues=False,
):
    """y_t of all steps, the last inputs of the convolution, and S."""
    batch, time, _ = inputs.shape
    d_v = len(weights["norm_scale"])
    shared = key_heads or num_heads
    taps = weights["convolution_kernel"]
    window = np.zeros((batch, len(taps), taps.shape[1]))
    if before is not None:
        window[:, 1:] = before
    if S is None:
        S = np.zeros((batch, num_heads, key_dim, d_v))
    largest = 2 if negative_eigenvalues else 1
    outputs = []
    for step in range(time):
        u = inputs[:, step]
        qkv = [
            u @ weights[f"{name}_kernel"] for name in ("query", "key", "value")
        ]
        window = shifted(window, np.concatenate(qkv, axis=-1))
        mixed = (window * taps).sum(axis=1)
        mixed = silu(mixed + weights.get("convolution_bias", 0))
        ends = np.cumsum([part.shape[-1] for part in qkv])[:-1]
        q, k, v = np.split(mixed, ends, axis=-1)
        q = unit_norm(q.reshape(batch, shared, key_dim)) / np.sqrt(key_dim)
        k = unit_norm(k.reshape(batch, reflections, shared, key_dim))
        v = v.reshape(batch, reflections, num_heads, d_v)
        beta = largest * sigmoid(u @ weights["write_kernel"])
        beta = beta.reshape(batch, reflections, num_heads)
        # Each key and query for the heads of its group.
        q, k = (
            np.repeat(part, num_heads // shared, axis=-2) for part in (q, k)
        )
        if "timescale_kernel" in weights:
            dt = softplus(
                u @ weights["timescale_kernel"] + weights["timescale_bias"]
            )
            a = np.exp(-np.exp(weights["log_transition"]) * dt)
            S = a[:, :, None, None] * S
        for j in range(reflections):
            one, b = k[:, j, :, :, None], beta[:, j, :, None, None]
            # (I - b k k^T) S + b k v^T
            S = S - b * one * (one * S).sum(axis=2, keepdims=True)
            S = S + b * one * v[:, j, :, None]
        o = (q[..., None] * S).sum(axis=2)
        o = rms_normalised(o) * weights["norm_scale"]
        o = o.reshape(batch, num_heads * d_v)
        if "gate_kernel" in weights:
            o = o * silu(u @ weights["gate_kernel"])
        outputs.append(o @ weights["output_kernel"])
    return np.stack(outputs, axis=1), window[:, 1:], S
