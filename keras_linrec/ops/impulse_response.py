"""The impulse response of state-space systems with A = P (D + T^-1) Q.

`delta` is Abar - I throughout: close to the identity, where small timescales
put it, float32 would keep few digits of the difference that matters.
"""

from keras import ops

from keras_linrec.ops.discretization import discretise
from keras_linrec.ops.scan import kernel_for
from keras_linrec.ops.transition_powers import TransitionPowers
from keras_linrec.ops.transition_powers import chunked_response
from keras_linrec.ops.transition_powers import doubled

# What reading a matrix costs, in products of it with a row: about 5 by XLA on
# 2 CPU cores, 12 by TensorFlow (N = 128). Both are within 10% of their best
# with what is between.
_READING = 8

# Loops of so many steps are written out: outside of programs JAX would compile
# them anew each time, 0.2 s.
_UNROLLED = 16


def impulse_response(transition, timescale, output_matrix, time, alpha=0.5):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse (LSSL, 4).

    The native kernel computes it where there is one. The portable form doubles
    powers of Abar, in O(N^3 log(time)).

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps, or a tensor if it is unknown until
            it runs.
        alpha: float in [0, 1]; 0.5 is the bilinear method. Defaults to 0.5.

    Returns:
        A tensor (features, channels, time).

    Example: an integrator that forgets, x' = -x + u.

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_linrec.ops.hippo import hippo
    >>> from keras_linrec.ops.impulse_response import impulse_response
    >>> transition = [
    ...     ops.convert_to_tensor(part.astype("float32"))
    ...     for part in hippo("legs", 1)
    ... ]
    >>> response = impulse_response(
    ...     transition, ops.ones(1), ops.ones((1, 1, 1)), 3, alpha=1.0
    ... )
    >>> [float(value) for value in response[0, 0]]
    [0.5, 0.25, 0.125]
    """
    if not isinstance(time, int):
        delta, input_vector = discretise(transition, timescale, alpha)
        powers = TransitionPowers(delta, time)
        return chunked_response(powers, input_vector, output_matrix)
    run = kernel_for(
        "impulse_response",
        output_matrix,
        time=time,
        channels=output_matrix.shape[-1],
    )
    if run is not None:
        return run(*transition, timescale, output_matrix, time, alpha)
    delta, input_vector = discretise(transition, timescale, alpha)
    return krylov_response(delta, input_vector, output_matrix, time)


def krylov_response(
    transition_minus_identity, input_vector, output_matrix, time
):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse.

    Columns Abar^i Bbar for i < S, rows C Abar^(jS) for the j that remain, and
    their products.

    Args:
        transition_minus_identity: tensor (features, N, N), Abar - I.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.

    Returns:
        A tensor (features, channels, time).
    """
    features, channels, state_size = output_matrix.shape
    delta = transition_minus_identity
    of_columns, of_rows = doublings(state_size, time, channels)
    columns, rows = input_vector[:, :, None], output_matrix
    for doubling in range(of_columns + of_rows):
        if doubling < of_columns:
            more = columns + delta @ columns
            columns = ops.concatenate([columns, more], axis=2)
        else:
            rows = ops.concatenate([rows, rows + rows @ delta], axis=1)
        if 2 ** (doubling + 1) < time:
            delta = doubled(delta)
    count = -(-time // 2 ** (of_columns + of_rows))
    response = _advance(rows, delta, count) @ columns
    size = 2**of_columns
    response = ops.reshape(response, (features, -1, channels, size))
    response = ops.transpose(response, (0, 2, 1, 3))
    return ops.reshape(response, (features, channels, -1))[:, :, :time]


def doublings(state_size, time, channels):
    """How often columns and rows double before a loop adds the other rows.

    In units of a product of one row with every feature's N x N matrix, with
    its gradient: a doubling squares the matrices, 3 N; a step of the loop
    takes its rows three times, and twice what reading the matrices takes.
    """

    def cost(plan):
        of_columns, of_rows = plan
        rows = channels * 2**of_rows
        steps = -(-time // 2 ** (of_columns + of_rows))
        loop = (steps - 1) * (rows + 2 * max(rows, _READING))
        squarings = of_columns + of_rows - (steps == 1)
        return 3 * (squarings * state_size + 2**of_columns + rows) + loop

    most = (time - 1).bit_length()
    return min(
        (
            (of_columns, of_rows)
            for of_columns in range(most + 1)
            for of_rows in range(most + 1 - of_columns)
        ),
        key=cost,
    )


def _advance(rows, delta, count):
    """Rows C Abar^j for j < count.

    Args:
        rows: tensor (features, rows, N).
        delta: tensor (features, N, N), Abar - I.
        count: integer.

    Returns:
        A tensor (features, count * rows, N).
    """
    if count == 1:
        return rows
    features, size, state_size = rows.shape

    @ops.custom_gradient
    def advance(rows, delta):
        all_rows = _repeat(delta, rows, count)

        # Left to itself, the gradient would add up N x N matrices in each
        # step; one product of all steps does it at once.
        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,), found = arguments, all_rows
            else:
                # As in `tridiagonal.solve`.
                found = _repeat(delta, rows, count)
            upstream = ops.reshape(
                upstream, (features, count, size, state_size)
            )
            adjoint = _repeat(
                ops.transpose(delta, (0, 2, 1)),
                ops.zeros_like(rows),
                count,
                ops.flip(ops.transpose(upstream, (1, 0, 2, 3)), axis=0),
            )
            # From the last to the first now.
            later = ops.flip(adjoint[:-1], axis=0)
            before = ops.transpose(_by_feature(found[:-1]), (0, 2, 1))
            return adjoint[-1], before @ _by_feature(later)

        return _by_feature(all_rows), gradient

    return advance(rows, delta)


def _repeat(delta, rows, count, additions=None):
    """x_0 = rows, x_j = x_{j-1} + x_{j-1} Delta, all of them, for j < count.

    With additions u, (count, ...), it is x_j = x_{j-1} + x_{j-1} Delta + u_j,
    where `rows` is x_{-1}.
    """

    def step(last, addition):
        after = last + last @ delta
        if additions is None:
            return after, last
        after = after + addition
        return after, after

    if count > _UNROLLED:
        return ops.scan(step, rows, additions, length=count)[1]
    added = [None] * count if additions is None else ops.unstack(additions)
    found = []
    for addition in added:
        rows, kept = step(rows, addition)
        found.append(kept)
    return ops.stack(found)


def _by_feature(rows):
    """(count, features, rows, N) to (features, count * rows, N)."""
    _, features, _, state_size = rows.shape
    rows = ops.transpose(rows, (1, 0, 2, 3))
    return ops.reshape(rows, (features, -1, state_size))
