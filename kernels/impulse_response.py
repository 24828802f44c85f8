"""The plain form of the impulse response of structured systems.

It computes the same as the native kernel, in `keras.ops`. It runs for that
kernel's second derivatives, and in its place in programs that turn out to need
portable code. Otherwise `keras_linrec.ops.impulse_response` has a portable form
of its own, which is faster.
"""

import functools

from keras import ops

from keras_linrec.kernels import tridiagonal
from keras_linrec.kernels.discretization import discretise
from keras_linrec.kernels.full_precision import matmul


def impulse_response(
    scan, p, d, q, t, b, timescale, output_matrix, time, alpha
):
    """K_k = C Abar^k Bbar for k < time, of systems with A = P (D + T^-1) Q.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`.
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T: superdiagonal (its last entry is
            ignored), diagonal, subdiagonal (likewise).
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.
        alpha: float, of the generalised bilinear transform.

    Returns:
        A tensor (features, channels, time).
    """
    solve = functools.partial(tridiagonal.solve_by_scans, scan)
    # Abar - I, because Abar itself would be rounded near the identity.
    delta, input_vector = discretise(solve, p, d, q, t, b, timescale, alpha)
    columns = input_vector[:, :, None]
    rows, size, count = output_matrix, 1, 1
    while size * count < time:
        if size > 1 or count > 1:
            delta = 2.0 * delta + matmul(delta, delta)
        if size * size < time:
            later = columns + matmul(delta, columns)
            columns = ops.concatenate([columns, later], 2)
            size *= 2
        else:
            later = rows + matmul(rows, delta)
            rows = ops.concatenate([rows, later], 1)
            count *= 2
    features, channels, _ = output_matrix.shape
    response = matmul(rows, columns)
    response = ops.reshape(response, (features, count, channels, size))
    response = ops.transpose(response, (0, 2, 1, 3))
    response = ops.reshape(response, (features, channels, count * size))
    return response[:, :, :time]
