"""State-space systems with A = P (D + T^-1) Q, over whole sequences.

All that follows works with Delta = Abar - I and never forms Abar: close to
the identity, where small time_deltas put it, float32 would keep few digits of
the difference that matters.
"""

import math

from keras import ops

from keras_linrec.ops import packing
from keras_linrec.ops.generating_function import generating_function_response
from keras_linrec.ops.scan import kernel_for
from keras_linrec.ops.shift import from_above
from keras_linrec.ops.shift import from_below

# Where the number of steps is unknown until it runs: the steps in a block, and
# how often blocks may double, which reaches 4 million steps.
_BLOCK = 64
_BLOCK_DOUBLINGS = 16
# What reading a matrix costs, in products of it with a row: about 5 by XLA on
# 2 CPU cores, 12 by TensorFlow (N = 128). Both are within 10% of their best
# with what is between.
_READING = 8

# Loops of so many steps are written out: outside of programs JAX would compile
# them anew each time, 0.2 s.
_UNROLLED = 16

# From how many entries of all Delta on memory decides. Blocks take some 11
# times as much for a gradient: at 2^24 entries (64 features, N = 512, 1024
# steps, JAX on 2 CPU cores) 743 MB where the generating function takes 62, in
# the same time. At N = 256 they take 2/3 of its time, at N = 128 1/5, and on
# TensorFlow 1/6 and less. They also keep their digits where A is unstable, so
# they run up to 11 GB.
_MANY_ENTRIES = 2**28


def impulse_response(transition, timescale, output_matrix, time, alpha=0.5):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse (LSSL, 4).

    The native kernel computes it where there is one. Of the portable forms,
    blocks of powers of Abar take O(N^3 log(time)) and are the faster ones up
    to N = 256 at least; where matrices of every feature would fill the memory,
    the generating function takes their place, see there for its limits.

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
    >>> from keras_linrec.ops.structured_state import impulse_response
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
    features, _, state_size = output_matrix.shape
    arguments = (*transition, timescale)
    run = kernel_for(
        "impulse_response", output_matrix, time=time, channels=state_size
    )
    if run is not None:
        return run(*arguments, output_matrix, time, alpha)
    if not isinstance(time, int):
        delta, input_vector = discretise(*arguments, alpha)
        return blocked_response(
            Blocks(delta, time), input_vector, output_matrix
        )
    if features * state_size**2 >= _MANY_ENTRIES:
        return generating_function_response(
            *arguments, output_matrix, time, alpha
        )
    delta, input_vector = discretise(*arguments, alpha)
    return krylov_response(delta, input_vector, output_matrix, time)


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
    above, diagonal, below = t[0], t[1], t[2]
    # M is divided by dt and multiplied by Q here, on its bands, rather than
    # the N times larger solution.
    scale = 1.0 / (p[:, None] * timescale) - alpha * (d * q)[:, None]
    right = ops.concatenate(
        [
            _tridiagonal(t) * (d * q) + _diagonal(q),
            _tridiagonal(t) @ (b / p)[:, None],
        ],
        axis=1,
    )
    solution = _solve_tridiagonal(
        above[:, None] * from_below(scale),
        diagonal[:, None] * scale - alpha * q[:, None],
        from_above(below[:, None] * scale),
        right[:, None],
    )
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

    Gaussian elimination in the order of the rows, which suits these systems.
    `ops.solve` would do, but JAX' batched LAPACK calls wait for each other for
    ever where XLA has two threads (seen with jaxlib 0.10.2 and two LSSL in a
    model). The gradient takes one more solution, of the transposed systems.

    Args:
        above, diagonal, below: tensors (N, systems); row n holds the entries
            of row n, and the last of `above` and the first of `below` are 0.
        right: tensor (N, 1, columns).

    Returns:
        A tensor (systems, N, columns).
    """

    @ops.custom_gradient
    def solve(above, diagonal, below, right):
        solution = _eliminate(above, diagonal, below, right)

        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,), found = arguments, solution
            else:
                # PyTorch, whose second derivatives see through what is
                # computed here, and not above.
                found = _eliminate(above, diagonal, below, right)
            adjoint = _eliminate(
                from_below(below),
                diagonal,
                from_above(above),
                ops.transpose(upstream, (1, 0, 2)),
            )
            _, systems, columns = found.shape
            dtype = found.dtype
            # XLA sums by a product several times as fast as by a sum.
            ones = ops.ones((columns, 1), dtype)

            def entries(moved):
                return -((adjoint * moved) @ ones)[:, :, 0]

            return (
                entries(from_below(found)),
                entries(found),
                entries(from_above(found)),
                ops.ones((1, systems), dtype) @ adjoint,
            )

        return ops.transpose(solution, (1, 0, 2)), gradient

    return solve(above, diagonal, below, right)


def _eliminate(above, diagonal, below, right):
    """The solution of `_solve_tridiagonal`, as (N, systems, columns)."""
    _, pivots = ops.scan(
        _next_pivot,
        ops.ones_like(diagonal[0]),
        (diagonal, below * from_above(above)),
    )
    # Starting from zeros keeps the loops' results whole: XLA is slow with what
    # is put together from two parts.
    zeros = ops.zeros_like(right[0] + pivots[0][:, None])
    factors = below * from_above(1.0 / pivots)
    _, eliminated = ops.scan(_forward_step, zeros, (factors, right))
    _, solution = ops.scan(
        _backward_step, zeros, (above, pivots, eliminated), reverse=True
    )
    return solution


# Outside of programs, JAX knows again a loop that it has compiled only by its
# function: these are none that are made in each call.


def _next_pivot(pivot, row):
    diagonal, product = row
    pivot = diagonal - product / pivot
    return pivot, pivot


def _forward_step(last, row):
    factor, right = row
    last = right - factor[:, None] * last
    return last, last


def _backward_step(last, row):
    above, pivot, eliminated = row
    last = (eliminated - above[:, None] * last) / pivot[:, None]
    return last, last


class Blocks:
    """The powers of Abar that sequences of some length need.

    Step jS + i of a sequence is reached by i steps within a block of S and j
    steps of a whole block, so that sqrt(time) of each are enough.

    Args:
        delta: tensor (features, N, N), Abar - I.
        time: the number of steps; an integer, or a tensor if it is unknown
            until it runs.
        size: integer, S, a power of 2. Defaults to `None`: sqrt(time), or 64
            where that is unknown.
    """

    def __init__(self, delta, time, size=None):
        self.delta = delta
        self.time = time
        static = isinstance(time, int)
        if size is None and static:
            size = 2 ** math.ceil(math.log2(time) / 2)
        self.size = size or _BLOCK
        self.count = -(-time // self.size)
        # Abar^(2^k) - I: for steps within a block, then for whole blocks.
        self.within = [delta]
        while 2 ** len(self.within) <= self.size:
            self.within.append(doubled(self.within[-1]))
        self.whole = [self.within.pop()]
        doublings = self.count.bit_length() if static else _BLOCK_DOUBLINGS
        for power in range(1, doublings):
            last = self.whole[-1]
            if not static:
                last = self._unless_too_long(2**power, last)
            self.whole.append(doubled(last))

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
                [columns, advanced(delta, columns, "s")], axis=-1
            )
        return columns

    def rows(self, vectors):
        """c Abar^(jS) for j < count: (features, M, N) to (count, ...)."""
        rows = vectors[None]
        for delta in self.whole:
            more = rows[: self.count - ops.shape(rows)[0]]
            more = more + ops.einsum("jfmn,fnk->jfmk", more, delta)
            rows = ops.concatenate([rows, more], axis=0)
        return rows

    def fold(self, states):
        """sum_j Abar^(S (count - j)) x_j over the first axis, count + 1 long.

        Args:
            states: tensor (count + 1, batch, features, N).
        """
        for delta in self.whole:
            odd = ops.zeros_like(states[: ops.shape(states)[0] % 2])
            states = ops.concatenate([odd, states], axis=0)
            states = advanced(delta, states[0::2]) + states[1::2]
        return states[0]

    def power(self, states, exponents):
        """Abar^e x for exponents (batch,) below S."""
        for bit, delta in enumerate(self.within):
            applies = (exponents // 2**bit) % 2 == 1
            states = ops.where(
                applies[:, None, None], advanced(delta, states), states
            )
        return states


def doubled(delta):
    """Abar^(2k) - I from Abar^k - I."""
    return 2.0 * delta + delta @ delta


def advanced(delta, states, columns=""):
    """Abar x for states (..., features, N), or (..., features, N, columns)."""
    # Not by `matmul`: where an operand of rank 4 meets one of rank 3,
    # TensorFlow 2.20 and 2.21 write beyond their buffer (tensorflow#117700).
    return states + ops.einsum(
        f"fnm,...fm{columns}->...fn{columns}", delta, states
    )


def krylov_response(delta, input_vector, output_matrix, time):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse.

    Columns Abar^i Bbar for i < S, rows C Abar^(jS) for the j that remain, and
    their products.

    Args:
        delta: tensor (features, N, N), Abar - I.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.

    Returns:
        A tensor (features, channels, time).
    """
    features, channels, state_size = output_matrix.shape
    within, whole = doublings(state_size, time, channels)
    columns, rows = input_vector[:, :, None], output_matrix
    for doubling in range(within + whole):
        if doubling < within:
            more = columns + delta @ columns
            columns = ops.concatenate([columns, more], axis=2)
        else:
            rows = ops.concatenate([rows, rows + rows @ delta], axis=1)
        if 2 ** (doubling + 1) < time:
            delta = doubled(delta)
    count = -(-time // 2 ** (within + whole))
    response = _advance(rows, delta, count) @ columns
    size = 2**within
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
        within, whole = plan
        rows = channels * 2**whole
        steps = -(-time // 2 ** (within + whole))
        loop = (steps - 1) * (rows + 2 * max(rows, _READING))
        squarings = within + whole - (steps == 1)
        return 3 * (squarings * state_size + 2**within + rows) + loop

    most = (time - 1).bit_length()
    return min(
        (
            (within, whole)
            for within in range(most + 1)
            for whole in range(most + 1 - within)
        ),
        key=cost,
    )


def _advance(rows, delta, count):
    """Rows C Abar^j for j < count.

    Args:
        rows: tensor (features, rows, N).
        delta: tensor (features, N, N).
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
                # As in `_solve_tridiagonal`.
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


def blocked_response(blocks, input_vector, output_matrix):
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
    first = advanced(blocks.delta, states)
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
    aligned = packing.take(inputs, ops.maximum(source, 0))
    aligned = ops.where(source[:, :, None] >= 0, aligned, 0.0)
    batch, _, features = ops.shape(inputs)
    aligned = ops.reshape(aligned, (batch, count, size, features))
    columns = ops.flip(blocks.columns(input_vector), axis=-1)
    additions = ops.einsum("fni,bjif->jbfn", columns, aligned)
    additions = ops.pad(additions, [[1, 0], [0, 0], [0, 0], [0, 0]])

    # The state before the first step makes the steps that fill no block by
    # itself, and joins behind the block that they are in.
    full = lengths // size
    joining = blocks.power(states, lengths - full * size)
    place = ops.arange(count + 1, dtype="int32")[:, None]
    joins = (place == count - full)[:, :, None, None]
    return blocks.fold(additions + ops.where(joins, joining, 0.0))
