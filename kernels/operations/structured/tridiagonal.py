"""Tridiagonal matrices: products, and Gaussian elimination.

A matrix is given by its bands (above, diagonal, below), each with an entry for
every row: row n of a product with x is

    below_(n-1) x_(n-1) + diagonal_n x_n + above_n x_(n+1)

and the last entries above and below are ignored. Exchanging the two transposes
the matrix. Elimination proceeds in the order of the rows: these systems need no
pivoting.

Elimination has two forms. `solve` is the faster one for the many right-hand
sides of a discretisation, and has a custom gradient. `substitute` runs a
kernel's scan in each direction. It is for streaming, which keeps the pivots
from step to step, and for derivatives of any order.
"""

from keras import ops

from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.reference import loops


def from_above(tensor, axis=-2):
    """Move each entry along an axis one down; the first becomes zero."""
    return _padded(_part(tensor, axis, slice(None, -1)), axis, [1, 0])


def from_below(tensor, axis=-2):
    """Move each entry along an axis one up; the last becomes zero."""
    return append_zero(_part(tensor, axis, slice(1, None)), axis)


def append_zero(tensor, axis=-2):
    """Append a zero along an axis."""
    return _padded(tensor, axis, [0, 1])


def _part(tensor, axis, kept):
    index = [slice(None)] * len(tensor.shape)
    index[axis] = kept
    return tensor[tuple(index)]


def _padded(tensor, axis, filling):
    padding = [[0, 0]] * len(tensor.shape)
    padding[axis] = filling
    return ops.pad(tensor, padding)


def multiply(bands, tensor):
    """The product of a matrix and a tensor, over the tensor's axis -2."""
    return (
        bands[1] * tensor
        + bands[0] * from_below(tensor)
        + from_above(bands[2] * tensor)
    )


# By scans.


def pivots(products, diagonal):
    """p_n = diagonal_n - above_(n-1) below_(n-1) / p_(n-1).

    Args:
        products: tensor (..., N - 1, systems), above times below without the
            last entry. XLA is 5 times slower if `from_below` makes them.
        diagonal: tensor (..., N, systems).
    """
    first, *rest = ops.unstack(diagonal, axis=-2)
    found = [first]
    if rest:
        for entry, product in zip(rest, ops.unstack(products, axis=-2)):
            found.append(entry - product / found[-1])
    return ops.stack(found, axis=-2)


def substitute(scan, above, below, pivots, right):
    """Solve a system from its pivots, by a scan in each direction.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`.
        above, below, pivots: tensors that broadcast to `right`.
        right: tensor (batch, N, columns).
    """
    shape = ops.shape(right)
    start = (ops.zeros_like(right[:, 0]),)

    def run(decay, inputs, reverse):
        decay = ops.broadcast_to(decay, shape)
        (outputs,), _ = scan((decay,), (inputs,), start, reverse)
        return outputs

    eliminated = run(from_above(-below / pivots), right, False)
    return run(-above / pivots, eliminated / pivots, True)


def solve_by_scans(scan, bands, right):
    """The solution of `solve`, differentiable to any order."""
    above, diagonal, below = (
        ops.expand_dims(ops.transpose(band), -1) for band in bands
    )
    found = pivots((above * below)[:, :-1], diagonal)
    right = ops.broadcast_to(right, (diagonal.shape[0], *right.shape))
    return substitute(scan, above, below, found, right)


# By loops, with a custom gradient.


def solve(bands, right):
    """Solve many systems with the same right-hand sides.

    The gradient solves the transposed systems once.

    Args:
        bands: above, diagonal and below, tensors (N, systems).
        right: tensor (N, columns).

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
                # PyTorch takes second derivatives through what is computed
                # here, but not through `solution` above.
                found = _eliminate(above, diagonal, below, right)
            adjoint = _eliminate(
                below, diagonal, above, ops.transpose(upstream, (1, 0, 2))
            )
            _, systems, columns = found.shape
            dtype = found.dtype
            # XLA computes the sum several times as fast as a product.
            ones = ops.ones((columns, 1), dtype)

            def entries(left, right):
                return -matmul(left * right, ones)[:, :, 0]

            return (
                entries(adjoint, from_below(found, axis=0)),
                entries(adjoint, found),
                entries(from_below(adjoint, axis=0), found),
                matmul(ops.ones((1, systems), dtype), adjoint),
            )

        return ops.transpose(solution, (1, 0, 2)), gradient

    return solve(*bands, ops.expand_dims(right, 1))


def _eliminate(above, diagonal, below, right):
    """The solution of `solve`, as (N, systems, columns)."""
    _, pivots = ops.scan(
        _next_pivot,
        ops.ones_like(diagonal[0]),
        (diagonal, from_above(above * below)),
    )
    # Starting from zeros lets each loop return its whole result: XLA is slow
    # to concatenate two parts.
    zeros = ops.zeros_like(right[0] + pivots[0][:, None])
    factors = from_above(below / pivots)
    _, eliminated = ops.scan(_forward_step, zeros, (factors, right))
    rows = above, pivots, eliminated
    _, solution = loops.scan(_backward_step, zeros, rows, reverse=True)
    return solution


# Outside `jit`, JAX finds a compiled loop again by the identity of its
# function, so these functions are defined once and not in each call.


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
