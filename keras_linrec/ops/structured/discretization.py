"""Discretisation of continuous systems with A = P (D + T^-1) Q."""

from keras_linrec.kernels.operations.structured import discretization


def discretise(transition, timescale, alpha):
    """Abar - I and Bbar by the generalised bilinear transform (LSSL, eq. 3).

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        alpha: float in [0, 1]; 0.5 is the bilinear method.

    Returns:
        `(transition_minus_identity, input_vector)`: (features, N, N) and
        (features, N).
    """
    return discretization.discretised(*transition, timescale, alpha)
