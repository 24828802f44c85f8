"""State-space systems with A = P (D + T^-1) Q, over whole sequences.

All that follows works with Delta = Abar - I and never forms Abar: close to
the identity, where small timescales put it, float32 would keep few digits of
the difference that matters.
"""

import math

from keras import ops

from keras_linrec.ops import steps
from keras_linrec.ops.scan import linear_scan

# Where the number of steps is unknown until it runs: the steps in a block, and
# how often blocks may double, which reaches 4 million steps.
_BLOCK = 64
_BLOCK_DOUBLINGS = 16


def discretise(p, d, q, t, b, timescale, alpha):
    """The generalised bilinear transform of x' = A x + B u (LSSL, eq. 3).

    x_t = x_{t-1} + Delta x_{t-1} + Bbar u_t, with

        Delta = (I - alpha dt A)^-1 dt A   = dt Q^-1 M^-1 (T D + I) Q
        Bbar  = (I - alpha dt A)^-1 dt B   = dt Q^-1 M^-1 T P^-1 B
        M     = T diag(1 / (P Q) - alpha dt D) - alpha dt I

    Args:
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T as in `StructuredTransition`.
        timescale: tensor (features,), dt.
        alpha: float; 0.5 is the bilinear method.

    Returns:
        `(delta, input_vector)`: (features, N, N) and (features, N).
    """
    timescale = timescale[:, None]
    scale = 1.0 / (p * q) - alpha * timescale * d
    above, diagonal, below = t[0, :-1], t[1], t[2, :-1]
    right = ops.concatenate(
        [
            _tridiagonal(t) * (d * q) + _diagonal(q),
            _tridiagonal(t) @ (b / p)[:, None],
        ],
        axis=1,
    )
    solution = _solve_tridiagonal(
        above * scale[:, 1:],
        diagonal * scale - alpha * timescale,
        below * scale[:, :-1],
        right,
    )
    solution = solution * timescale[:, :, None] / q[:, None]
    return solution[:, :, :-1], solution[:, :, -1]


def _diagonal(vector, offset=0):
    """The matrix with a vector on a diagonal above or below the main one."""
    size = vector.shape[0] + abs(offset)
    by_row = ops.pad(vector, [[max(-offset, 0), max(offset, 0)]])
    return ops.eye(size, k=offset, dtype=vector.dtype) * by_row[:, None]


def _tridiagonal(bands):
    """The matrix (N, N) with the superdiagonal, diagonal, subdiagonal."""
    return (
        _diagonal(bands[0, :-1], 1)
        + _diagonal(bands[1])
        + _diagonal(bands[2, :-1], -1)
    )


def _solve_tridiagonal(above, diagonal, below, right):
    """Solve many tridiagonal systems with the same right-hand sides.

    Gaussian elimination in the order of the rows, which suits these systems:
    one recurrence for the pivots, and a linear scan each way. `ops.solve`
    would do, but JAX' batched LAPACK calls wait for each other for ever where
    XLA has two threads (seen with jaxlib 0.10.2 and two LSSL in a model).

    Args:
        above, below: tensors (systems, N - 1).
        diagonal: tensor (systems, N).
        right: tensor (N, columns).

    Returns:
        A tensor (systems, N, columns).
    """
    pivots = _pivots(diagonal, above * below)
    shape = (*ops.shape(diagonal), right.shape[1])
    forward = ops.pad(-below / pivots[:, :-1], [[0, 0], [1, 0]])
    eliminated, _ = linear_scan(
        ops.broadcast_to(forward[:, :, None], shape),
        ops.broadcast_to(right, shape),
    )
    backward = ops.pad(-above, [[0, 0], [0, 1]]) / pivots
    solution, _ = linear_scan(
        ops.broadcast_to(backward[:, :, None], shape),
        eliminated / pivots[:, :, None],
        reverse=True,
    )
    return solution


def _pivots(diagonal, products):
    """p_n = diagonal_n - products_{n-1} / p_{n-1}, over the last axis."""
    products = ops.unstack(products, axis=1) if products.shape[1] else []
    first, *rest = ops.unstack(diagonal, axis=1)
    pivots = [first]
    for entry, product in zip(rest, products):
        pivots.append(entry - product / pivots[-1])
    return ops.stack(pivots, axis=1)


class Blocks:
    """The powers of Abar that sequences of some length need.

    Step jS + i of a sequence is reached by i steps within a block of S and j
    steps of a whole block, so that sqrt(time) of each are enough.

    Args:
        delta: tensor (features, N, N), Abar - I.
        time: the number of steps; an integer, or a tensor if it is unknown
            until it runs.
    """

    def __init__(self, delta, time):
        self.delta = delta
        self.time = time
        static = isinstance(time, int)
        self.size = 2 ** math.ceil(math.log2(time) / 2) if static else _BLOCK
        self.count = -(-time // self.size)
        # Abar^(2^k) - I: for steps within a block, then for whole blocks.
        self.within = [delta]
        while 2 ** len(self.within) <= self.size:
            self.within.append(_doubled(self.within[-1]))
        self.whole = [self.within.pop()]
        doublings = self.count.bit_length() if static else _BLOCK_DOUBLINGS
        for power in range(1, doublings):
            last = self.whole[-1]
            if not static:
                last = self._unless_too_long(2**power, last)
            self.whole.append(_doubled(last))

    def _unless_too_long(self, blocks, delta):
        """Zero, which stays as it is, where no sequence is so many blocks.

        An unstable system would overflow there, and infinity times the zero
        gradients of what is not used is NaN.
        """
        return ops.where(blocks <= self.count, delta, 0.0)

    def columns(self, vectors):
        """Abar^i v for i < S: (..., features, N) to (..., features, N, S)."""
        columns = vectors[..., None]
        for delta in self.within:
            columns = ops.concatenate(
                [columns, _apply(delta, columns, "s")], axis=-1
            )
        return columns

    def rows(self, vectors):
        """c Abar^(jS) for j < count: (features, M, N) to (count, ...)."""
        rows = vectors[None]
        for delta in self.whole:
            begun = rows[: self.count - ops.shape(rows)[0]]
            begun = begun + ops.einsum("jfmn,fnk->jfmk", begun, delta)
            rows = ops.concatenate([rows, begun], axis=0)
        return rows

    def fold(self, states):
        """sum_j Abar^(S (count - j)) x_j over the first axis, count + 1 long.

        Args:
            states: tensor (count + 1, batch, features, N).
        """
        for delta in self.whole:
            odd = ops.zeros_like(states[: ops.shape(states)[0] % 2])
            states = ops.concatenate([odd, states], axis=0)
            states = _apply(delta, states[0::2]) + states[1::2]
        return states[0]


def _doubled(delta):
    """Abar^(2k) - I from Abar^k - I."""
    return 2.0 * delta + delta @ delta


def _apply(delta, states, columns=""):
    """Abar x for states (..., features, N), or (..., features, N, columns)."""
    # Not by `matmul`: where an operand of rank 4 meets one of rank 3,
    # TensorFlow 2.20 and 2.21 write beyond their buffer (tensorflow#117700).
    return states + ops.einsum(
        f"fnm,...fm{columns}->...fn{columns}", delta, states
    )


def impulse_response(blocks, input_vector, output_matrix):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse.

    Args:
        blocks: `Blocks` of Abar.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.

    Returns:
        A tensor (features, channels, time).
    """
    rows = blocks.rows(output_matrix)
    response = ops.einsum("jfmn,fni->fmji", rows, blocks.columns(input_vector))
    shape = ops.shape(output_matrix)[:2]
    response = ops.reshape(response, (*shape, blocks.count * blocks.size))
    return response[:, :, : blocks.time]


def free_response(blocks, states, output_matrix):
    """C Abar^(k+1) x, the output at step k of a system left to itself.

    Args:
        blocks: `Blocks` of Abar.
        states: tensor (batch, features, N), x before the first step.
        output_matrix: tensor (features, channels, N).

    Returns:
        A tensor (batch, features, channels, time).
    """
    rows = blocks.rows(output_matrix)
    first = _apply(blocks.delta, states)
    response = ops.einsum("jfmn,bfni->bfmji", rows, blocks.columns(first))
    shape = (*ops.shape(first)[:2], output_matrix.shape[1])
    response = ops.reshape(response, (*shape, blocks.count * blocks.size))
    return response[..., : blocks.time]


def final_states(blocks, input_vector, inputs, states, lengths):
    """The states after `lengths` steps of each row.

    Args:
        blocks: `Blocks` of Abar.
        input_vector: tensor (features, N), Bbar.
        inputs: tensor (batch, time, features).
        states: tensor (batch, features, N), x before the first step.
        lengths: integer tensor (batch,).

    Returns:
        A tensor (batch, features, N).
    """
    size, count = blocks.size, blocks.count
    lengths = ops.cast(lengths, "int32")
    # Moved to the end of the last block, all rows end together, and the zeros
    # before them leave a state of zero as it is.
    source = ops.arange(count * size, dtype="int32") - count * size
    source = source[None] + lengths[:, None]
    aligned = steps.take(inputs, ops.maximum(source, 0))
    aligned = ops.where(source[:, :, None] >= 0, aligned, 0.0)
    batch, _, features = ops.shape(inputs)
    aligned = ops.reshape(aligned, (batch, count, size, features))
    columns = ops.flip(blocks.columns(input_vector), axis=-1)
    additions = ops.einsum("fni,bjif->jbfn", columns, aligned)
    additions = ops.pad(additions, [[1, 0], [0, 0], [0, 0], [0, 0]])

    # The state before the first step makes the steps that fill no block by
    # itself, and joins behind the block that they are in.
    full = lengths // size
    joining = _power(blocks, states, lengths - full * size)
    place = ops.arange(count + 1, dtype="int32")[:, None]
    joins = (place == count - full)[:, :, None, None]
    return blocks.fold(additions + ops.where(joins, joining, 0.0))


def _power(blocks, states, exponents):
    """Abar^e x for exponents (batch,) below the block size."""
    for bit, delta in enumerate(blocks.within):
        applies = (exponents // 2**bit) % 2 == 1
        states = ops.where(
            applies[:, None, None], _apply(delta, states), states
        )
    return states
