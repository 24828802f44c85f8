"""The plain form of the impulse response of structured systems.

What the native kernel computes, written on `keras.ops`: it runs where that one
does not, and where it is differentiated twice. Everywhere else
`keras_linrec.ops.structured_state` has the faster portable form.
"""

from keras import ops


def impulse_response(
    scan, p, d, q, t, b, timescale, output_matrix, time, alpha
):
    """K_k = C Abar^k Bbar for k < time, of systems with A = P (D + T^-1) Q.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`.
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T: superdiagonal (its last number
            counts for nothing), diagonal, subdiagonal (likewise).
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.
        alpha: float, of the generalised bilinear transform.

    Returns:
        A tensor (features, channels, time).
    """
    delta, columns = _discretised(scan, p, d, q, t, b, timescale, alpha)
    rows, size, count = output_matrix, 1, 1
    while size * count < time:
        if size > 1 or count > 1:
            # Of Abar - I: close to the identity, Abar itself keeps few digits.
            delta = 2.0 * delta + delta @ delta
        if size * size < time:
            columns = ops.concatenate([columns, columns + delta @ columns], 2)
            size *= 2
        else:
            rows = ops.concatenate([rows, rows + rows @ delta], 1)
            count *= 2
    features, channels, _ = output_matrix.shape
    response = ops.reshape(rows @ columns, (features, count, channels, size))
    response = ops.transpose(response, (0, 2, 1, 3))
    response = ops.reshape(response, (features, channels, count * size))
    return response[:, :, :time]


def _discretised(scan, p, d, q, t, b, timescale, alpha):
    """Abar - I, (features, N, N), and Bbar, (features, N, 1).

    With M = T diag(1 / (P Q) - alpha dt D) - alpha dt I these are
    dt Q^-1 M^-1 (T D + I) Q and dt Q^-1 M^-1 T P^-1 B.
    """
    timescale = timescale[:, None]
    scale = 1.0 / (p * q) - alpha * timescale * d
    above, diagonal, below = t[0, :-1], t[1], t[2, :-1]
    bands = _diagonal(above, 1) + _diagonal(diagonal) + _diagonal(below, -1)
    right = ops.concatenate(
        [bands * (d * q) + _diagonal(q), bands @ (b / p)[:, None]], axis=1
    )
    solution = _solve(
        scan,
        above * scale[:, 1:],
        diagonal * scale - alpha * timescale,
        below * scale[:, :-1],
        right,
    )
    solution = solution * timescale[:, :, None] / q[:, None]
    return solution[:, :, :-1], solution[:, :, -1:]


def _diagonal(vector, offset=0):
    """The matrix with a vector on a diagonal above or below the main one."""
    size = vector.shape[0] + abs(offset)
    by_row = ops.pad(vector, [[max(-offset, 0), max(offset, 0)]])
    return ops.eye(size, k=offset, dtype=vector.dtype) * by_row[:, None]


def _solve(scan, above, diagonal, below, right):
    """Tridiagonal systems, by elimination: a scan each way.

    Args:
        above, below: tensors (systems, N - 1).
        diagonal: tensor (systems, N).
        right: tensor (N, columns), the same for all systems.

    Returns:
        A tensor (systems, N, columns).
    """
    pivots = _pivots(diagonal, above * below)
    shape = (*diagonal.shape, right.shape[1])

    def run(decay, inputs, reverse):
        decay = ops.broadcast_to(decay[:, :, None], shape)
        inputs = ops.broadcast_to(inputs, shape)
        start = ops.zeros_like(inputs[:, 0])
        (outputs,), _ = scan((decay,), (inputs,), (start,), reverse)
        return outputs

    forward = ops.pad(-below / pivots[:, :-1], [[0, 0], [1, 0]])
    eliminated = run(forward, right, False)
    backward = ops.pad(-above, [[0, 0], [0, 1]]) / pivots
    return run(backward, eliminated / pivots[:, :, None], True)


def _pivots(diagonal, products):
    """p_n = diagonal_n - products_{n-1} / p_{n-1}, over the last axis."""
    products = ops.unstack(products, axis=1) if products.shape[1] else []
    first, *rest = ops.unstack(diagonal, axis=1)
    pivots = [first]
    for entry, product in zip(rest, products):
        pivots.append(entry - product / pivots[-1])
    return ops.stack(pivots, axis=1)
