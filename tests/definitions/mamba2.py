"""The layer of Mamba-2, step by step in float64.

Dao and Gu 2024 (2405.21060): the recurrence of section 6, and the block of
figure 6, right. The order of the gate and the norm, which the figure leaves
open, is that of the authors' code: the gate first.
"""

import numpy as np

from definitions.delta_net import rms_normalised
from definitions.delta_net import shifted
from definitions.delta_net import silu
from definitions.delta_net import softplus


def mamba2(
    weights,
    inputs,
    before=None,
    S=None,
    state_size=64,
    num_heads=4,
    num_groups=1,
):
    """The outputs of all steps, what the convolution read last, and S."""
    batch, time, _ = inputs.shape
    inner = len(weights["norm_scale"])
    P, N = inner // num_heads, state_size
    taps = weights["convolution_kernel"]
    window = np.zeros((batch, len(taps), taps.shape[1]))
    if before is not None:
        window[:, 1:] = before
    if S is None:
        S = np.zeros((batch, num_heads, N, P))
    A = np.exp(weights["log_transition"])
    outputs = []
    for step in range(time):
        vzd = inputs[:, step] @ weights["input_kernel"]
        ends = [taps.shape[1], taps.shape[1] + inner]
        v, z, d = np.split(vzd, ends, axis=-1)
        window = shifted(window, v)
        mixed = (window * taps).sum(axis=1)
        mixed = silu(mixed + weights.get("convolution_bias", 0))
        ends = [inner, inner + num_groups * N]
        x, B, C = np.split(mixed, ends, axis=-1)
        x = x.reshape(batch, num_heads, P)
        B = B.reshape(batch, num_groups, N)
        C = C.reshape(batch, num_groups, N)
        dt = softplus(d + weights["timescale_bias"])
        # Those of a group serve its heads.
        B, C = (np.repeat(m, num_heads // num_groups, axis=1) for m in (B, C))
        S = np.exp(-A * dt)[:, :, None, None] * S
        S = S + (dt[:, :, None] * B)[..., None] * x[:, :, None]
        y = (C[..., None] * S).sum(axis=2)
        y = y + weights["feedthrough"][:, None] * x
        y = y.reshape(batch, inner) * silu(z)
        y = rms_normalised(y.reshape(batch, num_groups, -1))
        y = y.reshape(batch, inner) * weights["norm_scale"]
        outputs.append(y @ weights["output_kernel"])
    return np.stack(outputs, axis=1), window[:, 1:], S
