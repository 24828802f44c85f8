"""Steps of systems with A = P (D + T^-1) Q, in O(N) per step and feature.

A whole sequence with a constant timescale is a convolution with the impulse
response. The functions here serve streams, and sequences whose steps differ in
length.
"""

from keras import ops

from keras_linrec.kernels.operations.structured.irregular_scan import (
    factorise as factorise,
)
from keras_linrec.kernels.operations.structured.irregular_scan import (
    solution_and_state,
)
from keras_linrec.kernels.operations.structured.systems import zero_state
from keras_linrec.ops.dispatch import kernel_for


def step(transition, factors, timescale, inputs, state):
    """One step: x + dt Q^-1 M^-1 [(T D + I) Q x + T P^-1 B u].

    Adding the change to the state, instead of transforming the state, keeps
    rounding from growing with the number of steps.

    Args:
        transition: `StructuredTransition` of tensors.
        factors: `Factors`, (N, features) or (batch, N, features).
        timescale: tensor (features,) or (batch, features), dt.
        inputs: tensor (batch, features), u.
        state: tensor (batch, N, features), x.
    """
    # The scan runs along the states, not along time; it must not be sharded.
    scan = kernel_for("linear_scan", state, along_time=False)
    return solution_and_state(
        scan, transition, factors, timescale, inputs, state
    )[1]


def structured_scan_irregular(
    transition,
    timescale,
    output_matrix,
    time_deltas,
    inputs,
    state,
    alpha,
    resets=None,
):
    """The outputs C x_t of systems whose steps differ in length.

    The native kernel computes them if available. Twice differentiable in every
    argument.

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time_deltas: tensor (batch, time), the length of each step in multiples
            of dt; zero leaves the state unchanged.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step, or `None`:
            zeros.
        alpha: float, the parameter of the bilinear transform.
        resets: boolean (batch, time), true where x is set to zero before the
            step. Defaults to `None`: no resets.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    if resets is None:
        resets = ops.zeros_like(time_deltas)
    if state is None:
        state = zero_state(inputs, output_matrix)
    run = kernel_for(
        "structured_scan_irregular",
        inputs,
        channels=output_matrix.shape[-1],
    )
    return run(
        *transition,
        timescale,
        output_matrix,
        ops.cast(time_deltas, inputs.dtype),
        ops.cast(resets, inputs.dtype),
        inputs,
        state,
        alpha,
    )
