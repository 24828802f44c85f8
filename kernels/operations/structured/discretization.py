"""From continuous systems with A = P (D + T^-1) Q to discrete ones."""

from keras import ops

from keras_linrec.kernels.operations.structured import tridiagonal
from keras_linrec.kernels.operations.structured.tridiagonal import from_below


def discretised(p, d, q, t, b, timescale, alpha):
    """`discretise` by the portable solver, outside of a native gradient."""
    return discretise(tridiagonal.solve, p, d, q, t, b, timescale, alpha)


def discretise(solve, p, d, q, t, b, timescale, alpha):
    """The generalised bilinear transform of x' = A x + B u (LSSL, eq. 3).

    x_t = x_(t-1) + (Abar - I) x_(t-1) + Bbar u_t, with

        Abar - I = (I - alpha dt A)^-1 dt A   = dt Q^-1 M^-1 (T D + I) Q
        Bbar     = (I - alpha dt A)^-1 dt B   = dt Q^-1 M^-1 T P^-1 B
        M        = T diag(1 / (P Q) - alpha dt D) - alpha dt I

    Abar itself is never formed. With small timescales it is close to the
    identity, and float32 would keep few digits of the difference.

    Args:
        solve: `tridiagonal.solve` or an equivalent function.
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T: superdiagonal (its last entry is
            ignored), diagonal, subdiagonal (likewise).
        timescale: tensor (features,), dt.
        alpha: float; 0.5 is the bilinear method.

    Returns:
        `(transition_minus_identity, input_vector)`: (features, N, N) and
        (features, N).
    """
    bands = ops.expand_dims(t, -1)
    # Dividing M by dt and multiplying it by Q touches its three bands only;
    # scaling the solution would touch N times as many numbers.
    scale = 1.0 / (p[:, None] * timescale) - alpha * (d * q)[:, None]
    identity = ops.eye(p.shape[0], dtype=p.dtype)
    right = ops.concatenate(
        [
            tridiagonal.multiply(bands, identity * (d * q)) + identity * q,
            tridiagonal.multiply(bands, (b / p)[:, None]),
        ],
        axis=1,
    )
    solution = solve(
        (
            bands[0] * from_below(scale),
            bands[1] * scale - alpha * q[:, None],
            bands[2] * scale,
        ),
        right,
    )
    return solution[:, :, :-1], solution[:, :, -1]
