"""Linear recurrences as they are written, in float64."""

import numpy as np


def linear_scan(decay, inputs, initial_state=None, reverse=False):
    """h_t = decay_t * h_{t-1} + inputs_t for real or complex arrays."""
    batch, time, channels = inputs.shape
    decay = np.broadcast_to(decay, inputs.shape)
    state = initial_state
    if state is None:
        state = np.zeros((batch, channels), inputs.dtype)
    outputs = np.zeros(inputs.shape, np.result_type(decay, inputs, state))
    for step in range(time)[:: -1 if reverse else 1]:
        state = decay[:, step] * state + inputs[:, step]
        outputs[:, step] = state
    return outputs, state


def projected_scan(
    decay, inputs, input_kernel, output_kernel, initial_state, reverse=False
):
    """Re(scan(inputs @ input_kernel) @ output_kernel), and the last state."""
    states, final = linear_scan(
        decay, inputs @ input_kernel, initial_state, reverse
    )
    return (states @ output_kernel).real, final
