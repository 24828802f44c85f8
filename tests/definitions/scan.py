"""Linear recurrences as they are written, in float64."""

import numpy as np


def linear_scan(decay, inputs, initial_state=None, reverse=False, resets=None):
    """h_t = decay_t * h_{t-1} + inputs_t for real or complex arrays.

    Before a step at which `resets` (batch, time) is true, the state is zero.
    """
    batch, time, channels = inputs.shape
    decay = np.broadcast_to(decay, inputs.shape)
    state = initial_state
    if state is None:
        state = np.zeros((batch, channels), inputs.dtype)
    outputs = np.zeros(inputs.shape, np.result_type(decay, inputs, state))
    if resets is None:
        resets = np.zeros((batch, time), bool)
    for step in range(time)[:: -1 if reverse else 1]:
        drop = resets[:, step, None]
        moved = np.where(drop, 0.0, decay[:, step] * state)
        state = moved + inputs[:, step]
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


def linear_scan_gradients(
    decay,
    outputs,
    initial_state,
    d_outputs,
    d_final_state,
    reverse=False,
    resets=None,
):
    """Cotangents of decay, inputs and initial state, by the chain rule.

    For complex numbers the cotangent of x is dL/d Re x + i dL/d Im x.
    """
    time = outputs.shape[1]
    varying = np.broadcast_to(decay, outputs.shape)
    d_decay, d_inputs = np.zeros_like(outputs), np.zeros_like(outputs)
    order = list(range(time)[:: -1 if reverse else 1])
    carry = d_final_state
    if resets is None:
        resets = np.zeros(outputs.shape[:2], bool)
    for index in range(time - 1, -1, -1):
        step = order[index]
        drop = resets[:, step, None]
        before = outputs[:, order[index - 1]] if index else initial_state
        d_inputs[:, step] = carry + d_outputs[:, step]
        slope = np.conj(before) * d_inputs[:, step]
        d_decay[:, step] = np.where(drop, 0.0, slope)
        carry = np.conj(varying[:, step]) * d_inputs[:, step]
        carry = np.where(drop, 0.0, carry)
    if decay.ndim == 1:
        d_decay = d_decay.sum((0, 1))
    return d_decay, d_inputs, carry
