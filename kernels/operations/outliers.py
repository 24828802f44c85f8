"""Where a causal convolution by Fourier transforms has to be cut, and how.

A Fourier transform rounds every number relative to the largest ones of its
sequence, and spreads a NaN over all of it. A convolution by transforms is
therefore causal only up to rounding: an outlier reaches the outputs before it,
and those long after it; so do the large numbers of a response that grows.

Sequences with an outlier are cut into the numbers of each level, and responses
into parts within which they neither grow nor decay by much. The convolution of
each level with each part is computed for itself, kept where it may differ from
zero, and added.

`native/source/convolution/outliers.h` computes the same, with the same
constants.
"""

import numpy as np
from keras import backend
from keras import ops

# Numbers of one level differ by at most this factor. A response that becomes
# larger than its beginning by no more than this factor is not cut.
MOST_GROWTH = 8.0
# The most by which the norm of a response grows within one part.
PART_GROWTH = 2.0
# The same for a part of a response that decays: its error is at most this many
# times the rounding of what it adds.
MOST_DECAY = 64.0
# A number has the level of larger ones around it: both among this many up to it
# and among as many from it on. One that crosses zero belongs to its neighbours.
NEIGHBOURS = 16
# The windows in which the magnitude of a sequence is measured.
WINDOWS = 16
# Rounding stays below this share of the earlier outputs.
ROUNDING = 1e-6
# The errors that a transform's rounding adds up to, as measured.
ROUNDINGS = 8.0
# A sequence that becomes this much louder than its beginning is cut too, where
# rounding allows no more. In float32 it would have to be 8 times for
# `ROUNDING`; but speech after silence is common, and costs as much as an
# outlier once it is cut.
QUIET_START = 8e3
# The fewest taps that are the beginning of a response.
FEWEST_TAPS = 4


def with_outliers(sequences):
    """Which sequences have outliers.

    A sequence has outliers

    - if a number is not finite;
    - if one number has more than half of its energy, and exceeds the typical
      magnitude by more than `MOST_GROWTH`;
    - if its root mean square exceeds the typical magnitude by so much that
      rounding, relative to the root mean square, is above `ROUNDING` of the
      typical magnitude;
    - if it exceeds the magnitude of the beginning by as much, and by more than
      `QUIET_START`.

    Magnitudes are root mean squares of windows. The typical one is a mean over
    all windows but the largest, of square roots, in which a few count little.

    Args:
        sequences: tensor (..., time).

    Returns:
        A boolean tensor (..., 1).
    """
    squares = ops.square(sequences)
    time = ops.cast(ops.shape(sequences)[-1], squares.dtype)
    total = ops.sum(squares, axis=-1, keepdims=True)
    largest = ops.amax(squares, axis=-1, keepdims=True)
    energies = _means_over_windows(squares)
    eps = np.finfo(backend.standardize_dtype(squares.dtype)).eps
    limit = max(MOST_GROWTH, ROUNDING / (ROUNDINGS * eps))

    roots = ops.sqrt(ops.sqrt(energies))
    count = ops.sum(ops.cast(roots > 0, roots.dtype), axis=-1, keepdims=True)
    rest = ops.sum(roots, axis=-1, keepdims=True)
    rest = rest - ops.amax(roots, axis=-1, keepdims=True)
    typical = ops.square(ops.square(rest / ops.maximum(count - 1.0, 1.0)))
    place = ops.argmax(energies > 0, axis=-1, keepdims=True)
    first = ops.take_along_axis(energies, place, axis=-1)

    has_one = (largest > MOST_GROWTH**2 * typical) & (2.0 * largest > total)
    has_several = total > limit**2 * time * typical
    growth = max(QUIET_START, limit)
    is_quiet_at_first = total > growth**2 * time * first
    exceeds = has_one | has_several | is_quiet_at_first
    return (exceeds & (count > 1.0)) | ~ops.isfinite(total)


def _means_over_windows(squares):
    """The means of (..., time) over windows, (..., windows)."""
    *leading, time = ops.shape(squares)
    is_known = isinstance(time, int)
    size = time // WINDOWS
    size = max(size, 1) if is_known else ops.maximum(size, 1)
    windows = -(-time // size)
    missing = windows * size - time
    if not is_known or missing:
        squares = ops.pad(squares, [*[[0, 0]] * len(leading), [0, missing]])
    sums = ops.sum(ops.reshape(squares, (*leading, windows, size)), axis=-1)
    # The last window may be shorter.
    counts = ops.minimum(time - ops.arange(0, windows) * size, size)
    return sums / ops.cast(counts, sums.dtype)


def has_growth(responses):
    """Whether responses grow beyond `MOST_GROWTH` times their beginning.

    Args:
        responses: tensor (..., taps).

    Returns:
        A boolean tensor (..., 1), true for a response that is not finite too.
    """
    taps = ops.shape(responses)[-1]
    squares = ops.square(responses)
    total = ops.sum(squares, axis=-1, keepdims=True)
    tap = ops.arange(0, taps, dtype="int32")
    is_first = (tap < taps // WINDOWS) | (tap < FEWEST_TAPS)
    begin = ops.sum(ops.where(is_first, squares, 0.0), axis=-1, keepdims=True)
    return ~(total <= MOST_GROWTH**2 * begin)


def may_overflow(sequences, responses):
    """Whether transforms of the products may exceed the largest number.

    Args:
        sequences: tensor (batch, features, 1, time).
        responses: tensor (features, channels, taps).

    Returns:
        A boolean tensor (batch, features, channels, 1).
    """
    time = ops.cast(ops.shape(sequences)[-1], sequences.dtype)
    norms = [
        ops.sqrt(ops.sum(ops.square(one), axis=-1, keepdims=True))
        for one in (sequences, responses)
    ]
    return ~ops.isfinite(time * norms[0] * (time * norms[1]))


def sum_of_pieces(transform, convolve, sequences, responses, is_cut):
    """The convolution of sequences with responses, piece by piece.

    Args:
        transform: function of a tensor (..., time) that returns its transform.
        convolve: function of the transforms of sequences and responses that
            returns the convolutions.
        sequences: tensor (batch, features, channels, time), with one channel
            or as many as the responses have.
        responses: tensor (features, channels, taps).
        is_cut: boolean tensor, as the sequences of one step, true where a
            sequence is cut.

    Returns:
        What `convolve` returns, NaN from the first number on that is not
        finite.
    """
    time = ops.shape(sequences)[-1]
    numbers, is_broken = _up_to_a_break(sequences)
    taps, is_broken_tap = _up_to_a_break(responses)
    levels = _levels(numbers, is_cut)
    parts = _parts(taps)
    tap = ops.arange(0, ops.shape(taps)[-1], dtype="int32")
    step = ops.arange(0, time, dtype="int32")

    def add_part(outputs, begin):
        opening = ops.amax(
            ops.where(tap == begin, parts, _NO_LEVEL), axis=-1, keepdims=True
        )
        is_part = (parts == opening) & (opening > _NO_LEVEL)
        size = ops.sum(ops.cast(is_part, "int32"), axis=-1, keepdims=True)
        # Under 64 bits, JAX sums 32-bit integers to 64-bit ones.
        end = begin + ops.cast(ops.maximum(size, 1), "int32")
        part = ops.where(is_part, taps, 0.0)
        exponent = _exponent(ops.amax(ops.abs(part), axis=-1, keepdims=True))
        of_part = transform(_times_power_of_two(part, -exponent))

        def add_level(outputs, level):
            is_level = levels == level
            piece = ops.where(is_level, numbers, 0.0)
            scale = _LEVEL * ops.where(level > _NO_LEVEL, level, 0)
            response = convolve(
                transform(_times_power_of_two(piece, -scale)), of_part
            )
            response = _times_power_of_two(response, exponent + scale)
            # TensorFlow forgets the sizes of what it transforms back.
            response = ops.reshape(response, ops.shape(outputs))
            # A step sees the part of a number at least `begin`, and less than
            # `end` steps back.
            count = ops.cumsum(ops.cast(is_level, "int32"), axis=-1)
            seen = _delayed(count, step - begin) - _delayed(count, step - end)
            return outputs + ops.where(seen > 0, response, 0.0), _largest(
                ops.where(levels < level, levels, _NO_LEVEL)
            )

        outputs, _ = ops.while_loop(
            lambda _, level: ops.any(level > _NO_LEVEL),
            add_level,
            (outputs, _largest(levels)),
        )
        return outputs, end

    outputs, _ = ops.while_loop(
        lambda _, begin: ops.any(begin < ops.shape(taps)[-1]),
        add_part,
        (
            ops.zeros_like(numbers * responses[..., :1]),
            ops.zeros_like(parts[..., :1]),
        ),
    )
    # Added, and not put in its place: a gradient of NaN stays one.
    is_broken_tap = ops.pad(
        is_broken_tap,
        [[0, 0], [0, 0], [0, time - ops.shape(taps)[-1]]],
        constant_values=True,
    ) & ops.any(is_broken_tap, axis=-1, keepdims=True)
    return outputs + ops.where(
        is_broken | is_broken_tap, float("nan"), ops.zeros_like(outputs)
    )


# The logarithms to the base 2 of the factors.
_LEVEL = int(np.log2(MOST_GROWTH))
_GROWTH = int(np.log2(PART_GROWTH))
_DECAY = int(np.log2(MOST_DECAY))
# Below the level of any number.
_NO_LEVEL = -(2**20)


def _up_to_a_break(sequences):
    """The numbers before the first that is not finite, and where it lies."""
    is_broken = ops.cast(~ops.isfinite(sequences), "int32")
    is_broken = ops.cumsum(is_broken, axis=-1) > 0
    return ops.where(is_broken, 0.0, sequences), is_broken


def _exponent(magnitudes):
    """The exponents e of 2^e <= magnitudes < 2^(e + 1), for 0 the least."""
    magnitudes = ops.stop_gradient(magnitudes)
    dtype = backend.standardize_dtype(magnitudes.dtype)
    # Cast, because Keras rounds float64 beside a number of Python's.
    least = ops.cast(np.finfo(dtype).tiny, dtype)
    magnitudes = ops.maximum(magnitudes, least)
    return ops.cast(ops.floor(ops.log2(magnitudes)), "int32")


def _times_power_of_two(numbers, exponent):
    """numbers * 2^exponent, in two steps that do not overflow by themselves."""
    half = exponent // 2
    for part in (half, exponent - half):
        numbers = numbers * ops.power(
            ops.cast(2.0, numbers.dtype), ops.cast(part, numbers.dtype)
        )
    return numbers


def _levels(numbers, is_cut):
    """The level of each number, one for all of a sequence that is not cut."""
    magnitudes = ops.abs(ops.stop_gradient(numbers))
    largest = ops.amax(magnitudes, axis=-1, keepdims=True)
    before = _largest_of_neighbours(magnitudes)
    behind = ops.flip(_largest_of_neighbours(ops.flip(magnitudes, -1)), -1)
    around = ops.where(is_cut, ops.minimum(before, behind), largest)
    return ops.where(
        magnitudes > 0,
        _exponent(around) // _LEVEL,
        ops.cast(_NO_LEVEL, "int32"),
    )


def _largest_of_neighbours(magnitudes):
    """The largest of each number and of those before it."""
    reach = 1
    while reach < NEIGHBOURS:
        before = ops.pad(magnitudes, [[0, 0]] * 3 + [[reach, 0]])
        time = ops.shape(magnitudes)[-1]
        magnitudes = ops.maximum(magnitudes, before[..., :time])
        reach *= 2
    return magnitudes


def _parts(responses):
    """The part of each tap: whole numbers that rise along a response."""
    magnitudes = ops.abs(ops.stop_gradient(responses))
    before = _running_maximum(magnitudes)
    behind = ops.flip(_running_maximum(ops.flip(magnitudes, -1)), -1)
    # A bound of the norm up to each tap: its square might overflow.
    taps = ops.shape(responses)[-1]
    count = ops.cast(ops.arange(1, taps + 1, dtype="int32"), before.dtype)
    norm = _exponent(before) + _exponent(ops.sqrt(count))
    return norm // _GROWTH - _exponent(behind) // _DECAY


def _running_maximum(sequences):
    """The largest number up to each, (..., time)."""
    time = ops.shape(sequences)[-1]
    step = ops.arange(0, time, dtype="int32")

    def reach_further(largest, reach):
        before = ops.take(largest, ops.maximum(step - reach, 0), axis=-1)
        return ops.maximum(largest, before), 2 * reach

    largest, _ = ops.while_loop(
        lambda _, reach: reach < time, reach_further, (sequences, 1)
    )
    return largest


def _largest(levels):
    return ops.amax(levels, axis=-1, keepdims=True)


def _delayed(counts, steps):
    """The counts at other steps, 0 at those before the first.

    Args:
        counts: integer tensor (batch, features, channels or 1, time).
        steps: integer tensor (features, channels, time).
    """
    shape = ops.shape(steps)
    counts = ops.broadcast_to(counts, (ops.shape(counts)[0], *shape))
    steps = ops.broadcast_to(steps, ops.shape(counts))
    found = ops.take_along_axis(counts, ops.maximum(steps, 0), axis=-1)
    return ops.where(steps >= 0, found, 0)


def differentiated(sequences, cotangents):
    """The sequences, zero behind the last output that is differentiated.

    A NaN there has no part in the gradient.

    Args:
        sequences: tensor (..., 1, time).
        cotangents: tensor (..., channels, time) of the outputs.
    """
    time = ops.shape(sequences)[-1]
    steps = ops.arange(0, time, dtype="int32")
    last = ops.where(cotangents != 0, steps, -1)
    last = ops.amax(last, axis=(-2, -1), keepdims=True)
    return ops.where(steps <= last, sequences, 0.0)
