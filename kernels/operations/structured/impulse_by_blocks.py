"""The impulse response of a system, by blocks of the powers of its transition.

`delta` is Abar - I throughout: small timescales put Abar close to the identity,
where float32 would retain few digits of the difference.
"""

from keras import ops

from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.operations.structured.powers import doubled

# The cost of reading a matrix, in products of it with a row: about 5 for XLA on
# 2 CPU cores, 12 for TensorFlow (N = 128). With the value between, both are
# within 10% of their optimum.
_READING_COST = 8

# Loops of up to this many steps are unrolled: outside `jax.jit`, JAX would
# compile them again in each call, which takes 0.2 s.
_UNROLLED = 16


def impulse_by_blocks(
    transition_minus_identity, input_vector, output_matrix, time
):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse.

    It is the product of the rows C Abar^(jS), j = 0, 1, ..., with the columns
    Abar^i Bbar, i < S.

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
    column_doublings, row_doublings = doublings(state_size, time, channels)
    columns, rows = input_vector[:, :, None], output_matrix
    for doubling in range(column_doublings + row_doublings):
        if doubling < column_doublings:
            advanced = columns + matmul(delta, columns)
            columns = ops.concatenate([columns, advanced], axis=2)
        else:
            later = rows + matmul(rows, delta)
            rows = ops.concatenate([rows, later], axis=1)
        if 2 ** (doubling + 1) < time:
            delta = doubled(delta)
    count = -(-time // 2 ** (column_doublings + row_doublings))
    response = matmul(_all_rows(rows, delta, count), columns)
    size = 2**column_doublings
    response = ops.reshape(response, (features, -1, channels, size))
    response = ops.transpose(response, (0, 2, 1, 3))
    return ops.reshape(response, (features, channels, -1))[:, :, :time]


def doublings(state_size, time, channels):
    """The doublings of columns and rows before a loop adds the remaining rows.

    They minimise the cost of response and gradient. The unit is the product of
    one row with the N x N matrix of every feature: a doubling squares the
    matrices, which costs 3 N; a step of the loop multiplies its rows three
    times, and two of these products cost at least `_READING_COST`.

    Returns:
        `(column_doublings, row_doublings)`.
    """

    def cost(plan):
        column_doublings, row_doublings = plan
        rows = channels * 2**row_doublings
        steps = -(-time // 2 ** (column_doublings + row_doublings))
        loop = (steps - 1) * (rows + 2 * max(rows, _READING_COST))
        squarings = column_doublings + row_doublings - (steps == 1)
        return 3 * (squarings * state_size + 2**column_doublings + rows) + loop

    most = (time - 1).bit_length()
    return min(
        (
            (column_doublings, row_doublings)
            for column_doublings in range(most + 1)
            for row_doublings in range(most + 1 - column_doublings)
        ),
        key=cost,
    )


def _all_rows(rows, delta, count):
    """The rows C Abar^j for j < count.

    Args:
        rows: tensor (features, rows, N), C.
        delta: tensor (features, N, N), Abar - I.
        count: integer.

    Returns:
        A tensor (features, count * rows, N).
    """
    if count == 1:
        return rows
    features, size, state_size = rows.shape

    @ops.custom_gradient
    def iterate(rows, delta):
        all_rows = _iterates(delta, rows, count)

        # Automatic differentiation would add up N x N matrices in each step;
        # this is a single product over all steps.
        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,), known = arguments, all_rows
            else:
                # PyTorch; see `tridiagonal.solve`.
                known = _iterates(delta, rows, count)
            upstream = ops.reshape(
                upstream, (features, count, size, state_size)
            )
            adjoint = _iterates(
                ops.transpose(delta, (0, 2, 1)),
                ops.zeros_like(rows),
                count,
                ops.flip(ops.transpose(upstream, (1, 0, 2, 3)), axis=0),
            )
            # The adjoint runs from the last row to the first.
            later = ops.flip(adjoint[:-1], axis=0)
            before = ops.transpose(_by_feature(known[:-1]), (0, 2, 1))
            d_delta = matmul(before, _by_feature(later))
            return adjoint[-1], d_delta

        return _by_feature(all_rows), gradient

    # TensorFlow's `custom_gradient` refuses variables, and Keras 3.12 takes its
    # own for tensors: `convert_to_tensor` leaves them as they are.
    return iterate(1 * rows, delta)


def _iterates(delta, rows, count, additions=None):
    """The iterates x_j = x_{j-1} + x_{j-1} Delta, j < count, x_0 = rows.

    With additions u, (count, ...), x_j = x_{j-1} + x_{j-1} Delta + u_j, and
    x_{-1} = rows.
    """

    def step(last, addition):
        after = last + matmul(last, delta)
        if additions is None:
            return after, last
        after = after + addition
        return after, after

    if count > _UNROLLED:
        return ops.scan(step, rows, additions, length=count)[1]
    unrolled = [None] * count if additions is None else ops.unstack(additions)
    iterates = []
    for addition in unrolled:
        rows, iterate = step(rows, addition)
        iterates.append(iterate)
    return ops.stack(iterates)


def _by_feature(rows):
    """Reshape (count, features, rows, N) to (features, count * rows, N)."""
    _, features, _, state_size = rows.shape
    rows = ops.transpose(rows, (1, 0, 2, 3))
    return ops.reshape(rows, (features, -1, state_size))
