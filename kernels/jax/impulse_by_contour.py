"""The impulse response of structured systems, all steps and features at once.

Its generating function has no chain of steps. For any complex z,

    K(z) = sum_k C Abar^k Bbar z^k = dt (C Q^-1) M(z)^-1 (T P^-1 B)
    M(z) = T diag(u / (P Q) - v D) - v I
    u    = 1 - z,    v = dt w,    w = alpha + z (1 - alpha)

and M is tridiagonal, so that one K(z) is one elimination of N rows. K_k follows
by a Fourier transform from the values on a circle, z_j = r exp(-2 pi i j / n):
see `Circle`. The inner product with the solution needs no substitution, because
the vector on the left is eliminated beside the one on the right.

All of this holds if the circle encloses no pole, that is no 1 / lambda of an
eigenvalue of Abar. If it does, the numbers are wrong, not large; `_is_right`
tells, and then the response is computed in another form.

Everything is float64 inside: in float32 the growth would leave no digits. In
programs for TPUs, which imitate float64 and have no such transform, for several
platforms or for files, the other form runs alone.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_linrec.kernels import backends
from keras_linrec.kernels.jax.float64_scope import LOWERS_FLOAT64_SCOPE
from keras_linrec.kernels.jax.float64_scope import float64_scope
from keras_linrec.kernels.jax.lowering import native_or_portable
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.operations.causal_convolution import fast_length

# The rows of a block, which GPUs compute in one kernel, with the numbers of a
# row in registers. The gradient keeps those between blocks.
_BLOCK = 8
# The most bytes that eliminations may keep at the same time.
_MOST_BYTES = 2**28
# What the sum of logarithms, and the first tap, may be off: see `_is_right`.
_LOGARITHM = 1e-6
_FIRST_TAP = {"float32": 1e-9, "float64": 1e-11}


def impulse_by_contour(blocks, *arguments):
    """`impulse_response` of `kernels/operations/structured`, in float64.

    Args:
        blocks: the same in operations that JAX differentiates, which runs where
            the circle encloses a pole and for second derivatives. Functions of
            equal calls compare equal.
        *arguments: arrays p, d, q, t, b, timescale and output matrix; time and
            alpha.
    """
    *arrays, time, alpha = arguments
    call = _Call(blocks, time, float(alpha))
    return _response(call, *map(jnp.asarray, arrays))[0]


def is_fast(platform, time):
    """Whether it is the fastest form on a platform without native code.

    Its time has not been measured on a GPU. For 128 features and states and 784
    steps, XLA's program for an H100 has 87 kernels where that of the blocks has
    1,378, and with the gradient 669 where it has 2,394, of some microseconds
    each. It has some 70 operations in float64 for each state, feature and step,
    and 150 for the gradient. The GPUs of data centres compute them at half the
    speed of float32, others at a thirty-second or a sixty-fourth. The work
    grows with the steps, and the number of kernels of the blocks hardly does:
    by arithmetic, 256 features take longer than in blocks from 6,000 steps on,
    and 128 from 12,000.

    On CPUs it is slower.
    """
    if platform != "cuda" or time > _MOST_STEPS or not LOWERS_FLOAT64_SCOPE:
        return False
    device = jax.devices()[0]
    # For a GPU that is not here: as in a data centre.
    kind = str(getattr(device, "compute_capability", "9.0"))
    return kind in _FAST_FLOAT64 or kind.startswith("gfx9")


_MOST_STEPS = 2**13
# P100, V100, A100, H100 and H200, B200.
_FAST_FLOAT64 = ("6.0", "7.0", "8.0", "9.0", "10.0")


class Circle(NamedTuple):
    """Where the generating function is evaluated.

    With r^n = 1e-12 and n points, twice as many as steps, what wraps around is
    below 1e-12 of the response, and roundings grow by up to 1e6: errors are
    below 1e-9, for float32. Four times as many points and 1e-14 leave 1e-11,
    for float64. (Seen with the measures of `hippo` whose weights were moved by
    up to 30%, up to 256 states and 4,096 steps; LegT alone, with 256 states,
    has 2e-9.)
    """

    time: int
    count: int  # of all points; half of them and one are evaluated
    log_radius: float

    @classmethod
    def of(cls, time, dtype):
        over, wrapped = (4, 1e-14) if dtype == "float64" else (2, 1e-12)
        # Few points would make a small circle.
        count = fast_length(over * max(time, 4))
        return cls(time, count, math.log(wrapped) / count)

    def points(self):
        """z on half of the circle, and 0, whose values `_is_right` needs."""
        angles = 2 * math.pi / self.count * np.arange(self.count // 2 + 1)
        points = math.exp(self.log_radius) * np.exp(-1j * angles)
        points[-1] = points[-1].real
        return np.append(points, 0)

    def weights(self):
        """How often each point stands for itself and its conjugate."""
        weights = np.full(self.count // 2 + 1, 2.0)
        weights[[0, -1]] = 1
        return weights

    def growth(self):
        """r^-k."""
        return np.exp(-self.log_radius * np.arange(self.time))


# The response and its gradient.


@dataclass(frozen=True)
class _Call:
    blocks: object
    time: int
    alpha: float

    def in_blocks(self, *arrays):
        return self.blocks(*arrays, self.time, self.alpha)


@dataclass(frozen=True)
class _Form:
    """A function of flat arrays, comparable by value."""

    function: object
    call: _Call

    def __call__(self, *arrays):
        return list(self.function(self.call, *arrays))


def _run(contour, blocks, call, results, arrays):
    natives = tuple(
        (platform, _Form(contour, call)) for platform in ("cpu", "cuda", "rocm")
    )
    return native_or_portable(natives, _Form(blocks, call), results, arrays)


def _forward(call, *arrays):
    """The response, and 1.0 if it is that of the contour."""
    features, channels, _ = arrays[6].shape
    shape = features, channels, call.time
    results = [
        jax.ShapeDtypeStruct(shape, jnp.result_type(*arrays)),
        jax.ShapeDtypeStruct((), "float32"),
    ]
    return _run(_checked, _unchecked, call, results, arrays)


def _unchecked(call, *arrays):
    return call.in_blocks(*arrays), jnp.zeros((), "float32")


def _checked(call, *arrays):
    response, is_right = _by_contour(call, *arrays)
    response = _choose(
        is_right, lambda: response, lambda: call.in_blocks(*arrays)
    )
    return response, is_right.astype("float32")


def _choose(*given):
    # `jax.vmap` traces both functions once more where it meets the condition,
    # and what they contain is float64.
    with float64_scope(True):
        return backends.current().choose(*given)


def _remember(call, *arrays):
    response, is_right = _response(call, *arrays)
    return [response, is_right], (*arrays, is_right)


def _backward(call, kept, cotangents):
    *arrays, is_right = kept
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    given = (*arrays, is_right, cotangents[0])
    return tuple(_run(_slopes, _slopes_of_blocks, call, results, given))


def _slopes(call, *given):
    *arrays, is_right, upstream = given
    return _choose(
        is_right > 0,
        lambda: _slopes_by_contour(call, arrays, upstream),
        lambda: _slopes_of_blocks(call, *given),
    )


def _slopes_of_blocks(call, *given):
    *arrays, _, upstream = given
    return list(jax.vjp(call.in_blocks, *arrays)[1](upstream))


def _plain_backward(call, kept, cotangents):
    return tuple(_slopes_of_blocks(call, *kept, cotangents[0]))


_response = twice_differentiable(
    _forward,
    _remember,
    _backward,
    _plain_backward,
    differentiated=1,
)


# In float64.


def _by_contour(call, *arrays):
    """The response, and whether it is right."""
    dtype = jnp.result_type(*arrays)
    circle = Circle.of(call.time, dtype)
    with float64_scope(True):
        systems = _systems(*(array.astype("float64") for array in arrays))
        points = circle.points()
        parts = _in_parts(
            partial(_values, systems, call.alpha), _bytes_of(systems), points
        )
        total = len(points)
        found, logarithms = jax.tree.map(partial(_joined, total=total), parts)
        spectrum, at_zero = lax.complex(*found)[..., :-1], found.real[..., -1]
        sequence = jnp.fft.irfft(spectrum, circle.count)
        is_right = _is_right(
            circle, dtype, spectrum, at_zero, sequence[..., 0], logarithms
        )
        response = sequence[..., : circle.time] * circle.growth()
        return response.astype(dtype), is_right


def _is_right(circle, dtype, spectrum, at_zero, first, logarithms):
    """Whether the circle encloses no pole.

    - By Jensen's formula a pole p within adds n log(r / |p|) to the difference
      of the logarithms of |det M|, summed on the circle, and at its centre. One
      just outside adds (r / |p|)^n, which is what wraps around.
    - The first tap, which nothing has made grow, is K(0). Unlike the other
      test, it sees all that was computed.
    """
    weights = circle.weights()
    total = jnp.sum(weights * logarithms[..., :-1], -1)
    mean_square = jnp.sum(weights * jnp.abs(spectrum) ** 2, -1) / circle.count
    allowed = _FIRST_TAP.get(str(dtype), _FIRST_TAP["float32"])
    # What is NaN is not right.
    return jnp.all(
        jnp.abs(total - circle.count * logarithms[..., -1]) < _LOGARITHM
    ) & jnp.all(jnp.abs(first - at_zero) <= allowed * jnp.sqrt(mean_square))


def _slopes_by_contour(call, arrays, upstream):
    circle = Circle.of(call.time, upstream.dtype)
    with float64_scope(True):
        wide = [array.astype("float64") for array in arrays]
        systems, pull_back = jax.vjp(_systems, *wide)
        scaled = upstream.astype("float64") * circle.growth()
        spectrum = jnp.fft.rfft(scaled, circle.count)
        weights = circle.weights() / circle.count
        # The loss is the sum of the real parts of these times K(z).
        parts = _in_parts(
            lambda points, *given: _sums(
                systems, call.alpha, points, Complex(*given)
            ),
            _bytes_of(systems),
            circle.points()[:-1],
            spectrum.real * weights,
            -spectrum.imag * weights,
        )
        sums = jax.tree.map(lambda part: part.sum(0), parts)
        gradients = pull_back(_slopes_of(systems, sums))
        return [g.astype(a.dtype) for g, a in zip(gradients, arrays)]


class Complex(NamedTuple):
    """Complex numbers, whose products with real ones take no operations more.

    A real number is on the right of an operator.
    """

    real: jax.Array
    imag: jax.Array

    def __add__(self, other):
        return Complex(self.real + other.real, self.imag + other.imag)

    def __sub__(self, other):
        return Complex(self.real - other.real, self.imag - other.imag)

    def __mul__(self, other):
        if not isinstance(other, Complex):
            return Complex(self.real * other, self.imag * other)
        return Complex(
            self.real * other.real - self.imag * other.imag,
            self.real * other.imag + self.imag * other.real,
        )

    def square(self):
        return self.real * self.real + self.imag * self.imag

    def sum(self, axis):
        return jax.tree.map(lambda part: part.sum(axis, keepdims=True), self)

    def rows(self, first, last):
        return jax.tree.map(lambda part: part[first:last], self)

    def zeros(self):
        return jax.tree.map(jnp.zeros_like, self)


def real(number):
    return Complex(number, 0.0)


class _Systems(NamedTuple):
    """What the eliminations read, a row for each state.

    In M = T diag(u c - v d) - v I; K(z) = dt f M^-1 h.
    """

    above: jax.Array  # (N,), of T; the last entry is 0
    diagonal: jax.Array
    below: jax.Array  # likewise
    c: jax.Array
    d: jax.Array
    h: jax.Array
    f: jax.Array  # (N, features, channels)
    timescale: jax.Array  # (features,)

    def rows(self):
        """The rows of an elimination, with the bands of the row before."""
        above, below = (
            jnp.concatenate([jnp.zeros_like(band[:1]), band[:-1]])
            for band in (self.above, self.below)
        )
        return self._replace(above=above, below=below, timescale=None)


def _systems(p, d, q, t, b, timescale, output_matrix):
    above, diagonal, below = t[0].at[-1].set(0), t[1], t[2].at[-1].set(0)
    x = b / p
    h = diagonal * x
    h = h.at[:-1].add(above[:-1] * x[1:]).at[1:].add(below[:-1] * x[:-1])
    f = jnp.moveaxis(output_matrix / q, -1, 0)
    return _Systems(above, diagonal, below, 1 / (p * q), d, h, f, timescale)


# The eliminations.


def _values(systems, alpha, points):
    """K(z), (features, channels, points), and log|det M(z)|."""
    u, v = _u_and_v(systems, alpha, points)
    zeros = v.zeros()
    of_channels = zeros * systems.f[0][..., None]

    def several(carry, rows):
        last, total, logarithm = carry
        for row in _each(rows):
            last, square = _next(u, v, last, row, real(row.f[..., None]))
            total = total + last.e * last.g * last.inverse
            logarithm = logarithm + 0.5 * jnp.log(square)
        return (last, total, logarithm), None

    start = _Row(zeros, zeros, zeros, of_channels), of_channels, zeros.real
    (_, total, logarithm), _ = _forwards(several, start, systems.rows())
    return total * systems.timescale[:, None, None], logarithm[:, 0]


def _u_and_v(systems, alpha, points):
    """(points,), and (features, 1, points)."""
    w = _w(alpha, points)
    return real(1) - points, w * systems.timescale[:, None, None]


def _w(alpha, points):
    return real(alpha) + points * (1 - alpha)


class _Row(NamedTuple):
    """What an elimination knows of a row, (features, 1, points)."""

    s: Complex  # u c - v d
    inverse: Complex  # of the pivot
    e: Complex  # h, eliminated
    g: Complex  # a vector on the left, eliminated


def _next(u, v, last, row, left):
    """A `_Row` from the one before, and the pivot's squared magnitude."""
    s = u * row.c - v * row.d
    low = last.s * last.inverse * row.below
    up = s * row.above
    pivot = s * row.diagonal - v - low * up
    square = pivot.square()
    scale = 1 / square
    inverse = Complex(pivot.real * scale, -pivot.imag * scale)
    e = real(row.h) - low * last.e
    return _Row(s, inverse, e, left - up * last.inverse * last.g), square


class _Sums(NamedTuple):
    """What the gradient needs: sums over z for each state, (N, features).

    M y = h and M^T a = sum over channels of the cotangent times f. `u` and `w`
    hold the real parts of the sums of u a y and w a y, in three bands: of a_n
    and y_(n+1), of both with the same n, and of a_(n+1) and y_n.
    """

    u: tuple
    w: tuple
    a: jax.Array
    y: jax.Array  # times the cotangent, (N, features, channels)


def _sums(systems, alpha, points, cotangents):
    """The `_Sums` over some points."""
    u, v = _u_and_v(systems, alpha, points)
    w = _w(alpha, points)
    zeros = v.zeros()

    def eliminated(last, rows):
        found = [last]
        for row in _each(rows):
            left = (cotangents * row.f[..., None]).sum(1)
            found.append(_next(u, v, found[-1], row, left)[0])
        return found[1:]

    def substituted(later, block):
        (rows, bands), before = block
        found = eliminated(before, rows)
        pairs = [later]
        for (above, below), row in zip(_each(bands)[::-1], found[::-1]):
            later_y, later_a, later_s = pairs[-1]
            y = (row.e - later_s * later_y * above) * row.inverse
            a = (row.g - row.s * later_a * below) * row.inverse
            pairs.append((y, a, row.s))
        # All rows at once. Without the barrier, XLA would compute them again
        # for every few of the sums.
        y, a = (
            lax.optimization_barrier(_stacked(part[::-1]))
            for part in list(zip(*pairs))[:2]
        )
        later_y, later_a = y.rows(1, None), a.rows(1, None)
        y, a = y.rows(0, -1), a.rows(0, -1)
        bands = a * later_y, a * y, later_a * y
        return pairs[-1], _Sums(
            tuple((band * u).real.sum((-1, -2)) for band in bands),
            tuple((band * w).real.sum((-1, -2)) for band in bands),
            a.real.sum((-1, -2)),
            (y * cotangents).real.sum(-1),
        )

    # Only what passes from block to block is kept; the rest is computed again.
    rows, start = systems.rows(), _Row(zeros, zeros, zeros, zeros)
    _, before = _forwards(
        lambda last, rows: (eliminated(last, rows)[-1], last), start, rows
    )
    bands = systems.above, systems.below
    return _backwards(substituted, (zeros,) * 3, (rows, bands), before)


def _slopes_of(systems, sums):
    """The cotangents of `_Systems`."""
    timescale = systems.timescale
    bands = systems.above, systems.diagonal, systems.below
    # Of M_ab = T_ab (u c_b - v d_b) - (1 if a = b) v, with v = timescale w.
    of_u = [band @ timescale for band in sums.u]
    of_w = [band @ timescale**2 for band in sums.w]
    d_bands = [
        d * w - c * u
        for c, d, u, w in zip(
            _in_columns(systems.c), _in_columns(systems.d), of_u, of_w
        )
    ]
    d_timescale = systems.h @ sums.a + timescale * (
        systems.d @ _sums_of_columns(bands, sums.w) + sums.w[1].sum(0)
    )
    return _Systems(
        *d_bands,
        c=-_sums_of_columns(bands, of_u),
        d=_sums_of_columns(bands, of_w),
        h=sums.a @ timescale,
        f=sums.y * timescale[:, None],
        timescale=d_timescale,
    )


def _in_columns(vector):
    """Three bands of a matrix with a number for each of its columns."""
    return jnp.append(vector[1:], 0.0), vector, vector


def _sums_of_columns(bands, others):
    """The sums of the columns of the product, entry by entry, of two matrices.

    Args:
        bands: three arrays (N,).
        others: three arrays (N, ...).
    """
    above, diagonal, below = (
        (band * other.T).T for band, other in zip(bands, others)
    )
    return (diagonal + below).at[1:].add(above[:-1])


# Rows in blocks.


def _each(rows):
    """A list of what the rows of a tree of arrays are."""
    leaves, structure = jax.tree.flatten(rows)
    return [structure.unflatten(row) for row in zip(*leaves)]


def _stacked(numbers):
    return Complex(*(jnp.stack(part) for part in zip(*numbers)))


def _in_blocks(rows):
    """Whole blocks along a first axis, and the rows that remain, or `None`."""
    states = len(jax.tree.leaves(rows)[0])
    count, rest = divmod(states, _BLOCK)

    def whole(part):
        return part[: -rest or None].reshape(count, _BLOCK, *part.shape[1:])

    return (
        jax.tree.map(whole, rows) if count else None,
        jax.tree.map(lambda part: part[-rest:], rows) if rest else None,
    )


def _forwards(step, carry, rows):
    """`carry, result = step(carry, rows)` for all blocks, and then the rest.

    Returns:
        The last carry and both results, `None` where there was nothing.
    """
    blocks, rest = _in_blocks(rows)
    found = of_rest = None
    if blocks:
        carry, found = lax.scan(step, carry, blocks)
    if rest:
        carry, of_rest = step(carry, rest)
    return carry, (found, of_rest)


def _backwards(step, carry, rows, given):
    """The same from the end.

    Args:
        step: function of a carry and a pair: rows, and what `given` has.
        carry: the first carry.
        rows: tree of arrays.
        given: the results of `_forwards`.

    Returns:
        The results, joined along the axis of rows.
    """
    blocks, rest = _in_blocks(rows)
    found = []
    if rest:
        carry, of_rest = step(carry, (rest, given[1]))
        found = [of_rest]
    if blocks:
        _, of_blocks = lax.scan(step, carry, (blocks, given[0]), reverse=True)
        joined = jax.tree.map(
            lambda part: part.reshape(-1, *part.shape[2:]), of_blocks
        )
        found = [joined, *found]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


# Points in parts.


def _in_parts(function, bytes_of_point, points, *given):
    """The function's results for parts of the points, along a first axis.

    Args:
        function: function of `Complex` points and of parts of `given`.
        bytes_of_point: what a part may need.
        points: NumPy array of complex numbers.
        *given: arrays whose last axis is that of the points.

    Returns:
        The results for `count` parts of the same size. The last one is filled
        up with zeros.
    """
    total = len(points)
    count = -(-total * bytes_of_point // _MOST_BYTES)
    size = -(-total // min(count, total))
    count = -(-total // size)

    def cut(array):
        filling = [(0, 0)] * (array.ndim - 1) + [(0, count * size - total)]
        parts = jnp.pad(array, filling)
        parts = parts.reshape(*array.shape[:-1], count, size)
        return jnp.moveaxis(parts, -2, 0)

    points = Complex(points.real, points.imag)
    parts = jax.tree.map(cut, (points, *given))
    if count == 1:
        # A loop would be a program of its own.
        return jax.tree.map(
            lambda result: result[None],
            function(*jax.tree.map(lambda part: part[0], parts)),
        )
    return lax.map(lambda part: function(*part), parts)


def _bytes_of(systems):
    """What the gradient keeps for one point."""
    states, features, channels = systems.f.shape
    return 8 * features * (8 * -(-states // _BLOCK) + 4 * channels)


def _joined(parts, total):
    """The parts of results that have an axis of points, the last one."""
    whole = jnp.moveaxis(parts, 0, -2)
    return whole.reshape(*whole.shape[:-2], -1)[..., :total]
