"""Outputs of state-space systems, computed step by step.

JAX and PyTorch need this form to export sequences of symbolic length, which
neither a Fourier transform nor blocks of powers support.
"""

from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.operations.structured.systems import zero_state
from keras_linrec.ops import exportable
from keras_linrec.ops import precision
from keras_linrec.ops.masks import packing


def structured_scan_any_length(
    delta,
    input_vector,
    output_matrix,
    inputs,
    states,
    lengths=None,
    resets=None,
):
    """C x_t of x_t = x_{t-1} + Delta x_{t-1} + Bbar u_t.

    Args:
        delta: tensor (features, N, N), Abar - I.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.
        inputs: tensor (batch, time, features), u.
        states: tensor (batch, features, N), x before the first step, or
            `None`: zeros.
        lengths: integer tensor (batch,), the step after which to return each
            row's states. Defaults to `None`: the last.
        resets: boolean (batch, time), true where x is set to zero before the
            step. Defaults to `None`: no resets.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N).

    Example: a leaky integrator.

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_linrec.ops.structured import scan_any_length
    >>> outputs, states = scan_any_length.structured_scan_any_length(
    ...     -0.5 * ops.ones((1, 1, 1)),
    ...     ops.ones((1, 1)),
    ...     ops.ones((1, 1, 1)),
    ...     np.ones((1, 3, 1), "float32"),
    ...     ops.zeros((1, 1, 1)),
    ... )
    >>> [float(value) for value in outputs[0, :, 0, 0]]
    [1.0, 1.5, 1.75]
    """
    if states is None:
        states = zero_state(inputs, output_matrix)
    runs, resets = packing.marks_of_steps(inputs, lengths, resets)

    def step(state, now, constants):
        inputs, runs, resets = now
        delta, input_vector, output_matrix = constants
        state = ops.where(resets[:, None, None], ops.zeros_like(state), state)
        change = precision.einsum("fnm,bfm->bfn", delta, state)
        change = change + inputs[:, :, None] * input_vector
        state = ops.where(runs[:, None, None], state + change, state)
        return state, ops.einsum("fcn,bfn->bfc", output_matrix, state)

    by_step = (
        ops.transpose(inputs, (1, 0, 2)),
        ops.transpose(runs),
        ops.transpose(resets),
    )
    constants = delta, input_vector, output_matrix
    backend = backends.current()
    if exportable.by_steps(ops.shape(inputs)[1]) and hasattr(
        backend, "scan_of_any_length"
    ):
        run = backend.scan_of_any_length
        final_states, outputs = run(step, states, by_step, constants)
    else:
        final_states, outputs = ops.scan(
            lambda state, now: step(state, now, constants), states, by_step
        )
    return ops.transpose(outputs, (1, 0, 2, 3)), final_states
