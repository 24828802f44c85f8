"""The impulse response of state-space systems with A = P (D + T^-1) Q."""

from keras_linrec.ops.dispatch import kernel_for


def impulse_response(transition, timescale, output_matrix, time, alpha=0.5):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse (LSSL, 4).

    The native kernel computes it if available. Portable forms double powers of
    Abar, in O(N^3 log(time)).

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps, or a tensor if it is known at run
            time only.
        alpha: float in [0, 1]; 0.5 is the bilinear method. Defaults to 0.5.

    Returns:
        A tensor (features, channels, time).

    Example: a leaky integrator, x' = -x + u.

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_linrec.ops.structured.hippo import hippo
    >>> from keras_linrec.ops.structured import impulse_response
    >>> transition = [
    ...     ops.convert_to_tensor(part.astype("float32"))
    ...     for part in hippo("legs", 1)
    ... ]
    >>> response = impulse_response.impulse_response(
    ...     transition, ops.ones(1), ops.ones((1, 1, 1)), 3, alpha=1.0
    ... )
    >>> [float(value) for value in response[0, 0]]
    [0.5, 0.25, 0.125]
    """
    run = kernel_for(
        "impulse_response",
        output_matrix,
        # It has no rows, and no sequences.
        batch=None,
        time=time if isinstance(time, int) else None,
        channels=output_matrix.shape[-1],
    )
    return run(*transition, timescale, output_matrix, time, alpha)
