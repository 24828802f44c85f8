"""Scans whose gates compute the decay of each step, as written, in float64."""

import numpy as np

from definitions import scan
from definitions.minimal import candidates
from definitions.minimal import log_sigmoid
from definitions.minimal import sigmoid


def one_gate(k, v, candidate="linear"):
    return sigmoid(-k), sigmoid(k) * candidates(v, candidate)


def two_gates(f, k, v, candidate="linear"):
    """f' = f / (f + i) and i' = i / (f + i), of logarithms."""
    f, i = log_sigmoid(f), log_sigmoid(k)
    total = np.logaddexp(f, i)
    return np.exp(f - total), np.exp(i - total) * candidates(v, candidate)


def rates(r, k, inputs, largest_rate):
    log_a = largest_rate * sigmoid(r)
    # sqrt(1 - a^2), of which near a = 1 no digit would be left.
    scale = np.sqrt(-np.expm1(2 * log_a))
    return np.exp(log_a), scale * (sigmoid(k) * inputs)


def gated_scan(gates, drive, bias, state, *others, resets=None):
    """h_t = decay_t h_{t-1} + entering_t of all steps, and the last one.

    `gates` gives the decays and what enters.
    """
    decay, entering = gates(*numbers_of(drive, bias, state), *others)
    return scan.linear_scan(decay, entering, state, resets=resets)


def numbers_of(drive, bias, state):
    count = drive.shape[-1] // state.shape[1]
    return np.split(drive + bias, count, axis=-1)


def gated_scan_gradients(
    gates, drive, bias, state, *others, d_outputs, d_final_state, resets=None
):
    """Cotangents of all arguments, by the chain rule.

    The gates act on each number apart. Their slopes are central differences.
    """
    numbers = [*numbers_of(drive, bias, state), *others]
    decay, entering = gates(*numbers)
    outputs, _ = scan.linear_scan(decay, entering, state, resets=resets)
    d_decay, d_entering, d_state = scan.linear_scan_gradients(
        decay, outputs, state, d_outputs, d_final_state, resets=resets
    )
    d_numbers = []
    for place, number in enumerate(numbers):
        step = 1e-5 * np.maximum(1.0, np.abs(number))
        moved = [
            gates(*numbers[:place], number + way * step, *numbers[place + 1 :])
            for way in (1, -1)
        ]
        slopes = [(one - other) / (2 * step) for one, other in zip(*moved)]
        slope = d_decay * slopes[0] + d_entering * slopes[1]
        d_numbers.append(slope.sum((0, 1)) if number.ndim == 1 else slope)
    count = len(numbers) - len(others)
    d_drive = np.concatenate(d_numbers[:count], axis=-1)
    return d_drive, d_drive.sum((0, 1)), d_state, *d_numbers[count:]
