"""The impulse response from its generating function, with no dense matrix.

Complex numbers are (real, imag) pairs of tensors throughout.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_linrec.ops.fft_convolution import fast_length
from keras_linrec.ops.shift import from_above
from keras_linrec.ops.shift import from_below

# How many points there are for each step. More of them leave more room between
# rounding and aliasing: over HiPPO's measures, N = 16, 64 and 256, 500 steps,
# the largest error is 8e-3, 3e-4, 4e-5, 4e-5 and 1e-5 of the largest number in
# float32 for 1, 2, 3, 4 and 6 points a step.
_OVERSAMPLING = 4

# Numbers of one intermediate result that the gradient may keep at a time; it
# has some 18 of them.
_ENTRIES = 2**20


def generating_function_response(
    p, d, q, t, b, timescale, output_matrix, time, alpha
):
    """K_k = C Abar^k Bbar by way of sum_k K_k z^k = C (I - z Abar)^-1 Bbar.

    The generating function is evaluated on a circle |z| = r < 1, by one
    tridiagonal system of N equations for each of its points, and a Fourier
    transform takes it back to r^k K_k: O(N time) for each feature, where other
    ways take N^2. For A = P (D + T^-1) Q and the generalised bilinear
    transform, x = (I - z Abar)^-1 Bbar solves

        (T diag((1 - z) / (P dt) - c D Q) - c diag(Q)) x = T P^-1 B,
        c = alpha + (1 - alpha) z.

    K_{k + L'} r^L', of the L' points, is added to K_k. Where A is stable that
    vanishes in rounding; where it is unstable and K grows, the result is
    wrong, without notice. Close to that digits are lost: with parameters that
    are 30% away from LagT's, at random, up to 1e-3 of the largest number in
    float32, where blocks of powers err by 1e-5.

    Args:
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T as in `StructuredTransition`.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps.
        alpha: float in [0, 1]; 0.5 is the bilinear method.

    Returns:
        A tensor (features, channels, time).
    """
    dtype = keras.backend.standardize_dtype(output_matrix.dtype)
    length = fast_length(_OVERSAMPLING * time)
    share = _OVERSAMPLING / (_OVERSAMPLING + 1)
    logarithm = math.log(np.finfo(dtype).eps / 2) * share / length
    above, diagonal, below = t[0], t[1], t[2]
    vector = b / p
    right = (
        diagonal * vector
        + above * from_below(vector)
        + from_above(below * vector)
    )
    values = _evaluate(
        _nodes(length, logarithm, alpha, dtype),
        (from_above(above), diagonal, from_above(below)),
        (1.0 / (p * timescale[:, None]), d * q, q),
        right,
        output_matrix,
    )
    response = ops.irfft((values[0], values[1]), length)[:, :, :time]
    growth = np.exp(-logarithm * np.arange(time)).astype(dtype)
    return response * ops.convert_to_tensor(growth)


def _nodes(length, logarithm, alpha, dtype):
    """1 - z and alpha + (1 - alpha) z at the points, as two pairs.

    Neither cancels, not even where z is close to 1 or to -1.
    """
    half = np.pi * np.arange(length // 2 + 1) / length
    radius, gap = math.exp(logarithm), -math.expm1(logarithm)
    turn = radius * np.exp(-1j * half)
    one_minus = 2j * np.sin(half) * turn + gap
    one_plus = 2 * np.cos(half) * turn + gap
    weighted = (1 - alpha) * one_plus + (2 * alpha - 1)
    return tuple(
        (
            ops.convert_to_tensor(values.real.astype(dtype)),
            ops.convert_to_tensor(values.imag.astype(dtype)),
        )
        for values in (one_minus, weighted)
    )


def _evaluate(nodes, bands, scales, right, output_matrix):
    """C x of the docstring above at all nodes.

    Args:
        nodes: pairs of tensors (points,).
        bands: the entries of T above, on and below the diagonal, (N,): of
            columns n - 1, n and n and rows n, n and n - 1, so that the first
            entries above and below are 0.
        scales: 1 / (P dt), (features, N), D Q and Q, (N,).
        right: tensor (N,).
        output_matrix: tensor (features, channels, N).

    Returns:
        A tensor (2, features, channels, points), real and imaginary part.
    """
    features, _, state_size = output_matrix.shape
    points = nodes[0][0].shape[0]
    size = max(1, _ENTRIES // (state_size * points))

    @ops.custom_gradient
    def evaluate(above, diagonal, below, inverse, coupled, q, right, matrix):
        system = (above, diagonal, below, coupled, q, right)

        def values(inverse, matrix):
            return _values(nodes, system, inverse, matrix)

        def sums(inverse, matrix, real, imag):
            return _sums(nodes, system, inverse, matrix, (real, imag))

        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,) = arguments
            return _gradients(
                system,
                inverse,
                *_in_groups(
                    sums, (inverse, matrix, upstream[0], upstream[1]), size
                ),
            )

        return ops.stack(_in_groups(values, (inverse, matrix), size)), gradient

    return evaluate(*bands, *scales, right, output_matrix)


def _in_groups(function, arrays, size):
    """A function of arrays (features, ...), on `size` features at a time."""
    features = arrays[0].shape[0]
    if features <= size:
        return function(*arrays)
    groups = -(-features // size)
    # The last group is filled up with features whose results are left out.
    order = np.arange(groups * size, dtype="int32") % features
    arrays = tuple(
        ops.reshape(
            ops.take(array, order, axis=0), (groups, size, *array.shape[1:])
        )
        for array in arrays
    )
    results = ops.map(lambda group: function(*group), arrays)
    return tuple(
        ops.reshape(result, (groups * size, *result.shape[2:]))[:features]
        for result in results
    )


def _values(nodes, system, inverse, matrix):
    """C x without the states x: one elimination serves both sides.

    With M = L U, C x = (U^-T C) (L^-1 b) over the pivots, summed as they come.

    Args:
        inverse: tensor (features, N).
        matrix: tensor (features, channels, N).

    Returns:
        A pair of tensors (features, channels, points).
    """
    state_size = inverse.shape[1]
    row_of = _rows(system, inverse)
    matrix = ops.transpose(matrix, (2, 0, 1))[:, :, :, None]

    def body(n, carry):
        total, carry = carry[:2], _paired(carry[2:])
        carry = _eliminate(nodes, row_of(n), matrix[n], carry)
        _, reciprocal, forward, rows = carry
        state = _times(forward, reciprocal)
        more = _times(rows, (state[0][:, None], state[1][:, None]))
        return (*_plus(total, more), *_flat(carry))

    start = _start(nodes, inverse, matrix[0])
    zeros = start[-1]
    carry = ops.fori_loop(0, state_size, body, (zeros, zeros, *start))
    return carry[0], carry[1]


def _rows(system, inverse):
    """A function of n: row n's numbers, the one of `inverse` as (size, 1)."""
    inverse = ops.transpose(inverse)[:, :, None]

    def row(n):
        above, diagonal, below, coupled, q, right = (
            vector[n] for vector in system
        )
        return above, diagonal, below, inverse[n], coupled, q, right

    return row


def _start(nodes, inverse, matrix):
    """What `_eliminate` starts from: a row before the first, of the unit."""
    zeros = ops.zeros_like(inverse[:, :1] + nodes[0][0])
    rows = ops.zeros_like(matrix + nodes[0][0])
    ones = ops.ones_like(zeros)
    return zeros, zeros, ones, zeros, zeros, zeros, rows, rows


def _eliminate(nodes, row, matrix, carry):
    """One row of the elimination, of the system and of its transpose.

    Args:
        nodes: the pairs of `_nodes`.
        row: its numbers, as from `_rows`.
        matrix: tensor (features, channels, 1), or a pair (features, 1,
            points): the right-hand sides of the transpose.
        carry: pairs: the column's scale, 1 / pivot, and the right-hand sides
            of the system and of the transpose, all of the row before.
    """
    one_minus, weighted = nodes
    above, diagonal, below, inverse, coupled, q, right = row
    scale, reciprocal, forward, rows = carry
    factor = _times(_scaled(scale, below), reciprocal)
    scale = tuple(
        a * inverse - c * coupled for a, c in zip(one_minus, weighted)
    )
    upper = _scaled(scale, above)
    rows_factor = _times(upper, reciprocal)
    pivot = _minus(_scaled(scale, diagonal), _scaled(weighted, q))
    reciprocal = _reciprocal(_minus(pivot, _times(factor, upper)))
    real, imag = _times(factor, forward)
    forward = right - real, -imag
    rows_factor = rows_factor[0][:, None], rows_factor[1][:, None]
    real, imag = _times(rows_factor, rows)
    if isinstance(matrix, tuple):
        rows = matrix[0] - real, matrix[1] - imag
    else:
        rows = matrix - real, -imag
    return scale, reciprocal, forward, rows


def _sums(nodes, system, inverse, matrix, upstream):
    """What the gradients of a group of features are made of.

    With w = M^-T sum_m conj(upstream_m) C_m, one system for all channels, the
    gradient is Re(w^T (db - dM x)), and M's entries are linear in the two
    numbers of a node.

    Args:
        inverse: tensor (features, N).
        matrix: tensor (features, channels, N).
        upstream: pair of tensors (features, channels, points).

    Returns:
        `(products, rights, matrix_gradient)`: (features, N, 6), the sums over
        the points of Re(w_i x_j) times 1 - z and times c, for (i, j) = (n, n),
        (n, n - 1) and (n - 1, n); (features, N), those of Re(w); and (features,
        channels, N).
    """
    state_size = inverse.shape[1]
    row_of = _rows(system, inverse)
    by_state = ops.transpose(matrix, (2, 0, 1))[:, :, None]
    conjugate = upstream[0], -upstream[1]

    def eliminate(carry, n):
        row = by_state[n]
        sides = row @ conjugate[0], row @ conjugate[1]
        carry = _flat(_eliminate(nodes, row_of(n), sides, _paired(carry)))
        return carry, carry

    start = _start(nodes, inverse, by_state[0, :, :, :1])
    index = ops.arange(state_size, dtype="int32")
    _, stacked = ops.scan(eliminate, start, index)

    # The row after the last is none: its factors are zero.
    above, _, below = (from_below(band) for band in system[:3])

    def substitute(carry, row):
        state, adjoint = _paired(carry)
        n, row = row[0], _paired(row[1:])
        scale, scale_after, reciprocal, forward, rows = row
        state = _times(_scaled(scale_after, above[n]), state)
        state = _times(_minus(forward, state), reciprocal)
        adjoint = _times(_scaled(scale, below[n]), adjoint)
        rows = rows[0][:, 0], rows[1][:, 0]
        adjoint = _times(_minus(rows, adjoint), reciprocal)
        carry = (*state, *adjoint)
        return carry, carry

    zeros = start[0]
    scale = stacked[:2]
    after = tuple(from_below(part) for part in scale)
    _, solutions = ops.scan(
        substitute,
        (zeros,) * 4,
        (index, *scale, *after, *stacked[2:]),
        reverse=True,
    )
    state, adjoint = _paired(solutions)

    real = ops.stack([part[0] for part in nodes], axis=1)
    imag = ops.stack([part[1] for part in nodes], axis=1)

    def products(left, right):
        product = _times(left, right)
        return product[0] @ real - product[1] @ imag

    before = tuple(from_above(part) for part in state)
    adjoint_before = tuple(from_above(part) for part in adjoint)
    sums = ops.concatenate(
        [
            products(adjoint, state),
            products(adjoint, before),
            products(adjoint_before, state),
        ],
        axis=2,
    )
    rights = (adjoint[0] @ ops.ones_like(real[:, :1]))[:, :, 0]
    real, imag = (ops.transpose(part, (1, 2, 0)) for part in state)
    return (
        ops.transpose(sums, (1, 0, 2)),
        ops.transpose(rights),
        conjugate[0] @ real - conjugate[1] @ imag,
    )


def _gradients(system, inverse, products, rights, matrix_gradient):
    """The gradients of `evaluate`'s arguments, from the `_sums`."""
    above, diagonal, below, coupled, _, _ = system
    inverse_before = ops.transpose(from_above(ops.transpose(inverse)))
    coupled_before = from_above(coupled)
    # Of the entries on the diagonal, left of it and above it: by 1 - z and c.
    on, on_weighted = products[:, :, 0], products[:, :, 1]
    left, left_weighted = products[:, :, 2], products[:, :, 3]
    up, up_weighted = products[:, :, 4], products[:, :, 5]

    def by_column(on, left, up):
        """Entries left of the diagonal belong to the column before."""
        left = ops.transpose(from_below(ops.transpose(below * left)))
        return diagonal * on + left + above * up

    def total(values):
        return ops.sum(values, axis=0)

    return (
        total(coupled * up_weighted - inverse * up),
        total(coupled * on_weighted - inverse * on),
        total(coupled_before * left_weighted - inverse_before * left),
        -by_column(on, left, up),
        total(by_column(on_weighted, left_weighted, up_weighted)),
        total(on_weighted),
        total(rights),
        matrix_gradient,
    )


def _paired(parts):
    return tuple(zip(parts[::2], parts[1::2]))


def _flat(pairs):
    return tuple(part for pair in pairs for part in pair)


def _plus(left, right):
    return left[0] + right[0], left[1] + right[1]


def _minus(left, right):
    return left[0] - right[0], left[1] - right[1]


def _scaled(number, factor):
    return number[0] * factor, number[1] * factor


def _times(left, right):
    return (
        left[0] * right[0] - left[1] * right[1],
        left[0] * right[1] + left[1] * right[0],
    )


def _reciprocal(number):
    real, imag = number
    square = real * real + imag * imag
    return real / square, -imag / square
