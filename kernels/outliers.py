"""Sequences with outliers, and the pieces into which these cut them.

A Fourier transform rounds every number relative to the largest ones of its
sequence, and spreads a NaN over all of it. A convolution by transforms is
therefore causal only up to rounding: an outlier reaches the outputs before it.
Sequences with an outlier are cut where it enters, and the responses of the
pieces, each from its own beginning on, are added.

`native/source/outliers.h` computes the same, with the same constants.
"""

import numpy as np
from keras import backend
from keras import ops

# Within a piece, no number exceeds the first that is not zero by more than this
# factor.
MOST_GROWTH = 8.0
# The windows in which the magnitude of a sequence is measured.
WINDOWS = 16
# Rounding stays below this share of the earlier outputs.
ROUNDING = 1e-6
# A sequence that begins this much more quietly than one with an outlier would
# is cut too.
QUIET_START = 1e3


def with_outliers(sequences):
    """Which sequences have outliers.

    A sequence has outliers

    - if a number is not finite;
    - if one number has more than half of its energy, and exceeds the typical
      magnitude by more than `MOST_GROWTH`;
    - if its root mean square exceeds the typical magnitude so far that
      rounding relative to the former is too much for the latter, or exceeds
      that of the beginning further still.

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
    limit = ROUNDING / np.finfo(backend.standardize_dtype(squares.dtype)).eps

    roots = ops.sqrt(ops.sqrt(energies))
    count = ops.sum(ops.cast(roots > 0, roots.dtype), axis=-1, keepdims=True)
    rest = ops.sum(roots, axis=-1, keepdims=True)
    rest = rest - ops.amax(roots, axis=-1, keepdims=True)
    typical = ops.square(ops.square(rest / ops.maximum(count - 1.0, 1.0)))
    place = ops.argmax(energies > 0, axis=-1, keepdims=True)
    first = ops.take_along_axis(energies, place, axis=-1)

    has_one = (largest > MOST_GROWTH**2 * typical) & (2.0 * largest > total)
    has_several = total > limit**2 * time * typical
    is_quiet_at_first = total > (QUIET_START * limit) ** 2 * time * first
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
    counts = ops.minimum(time - ops.arange(windows) * size, size)
    return sums / ops.cast(counts, sums.dtype)


def sum_of_pieces(convolve, sequences, is_cut):
    """The convolution of sequences, piece by piece.

    Args:
        convolve: function of sequences (..., time) that returns their
            convolutions.
        sequences: tensor (..., time).
        is_cut: boolean tensor (..., 1), true where a sequence is cut.

    Returns:
        What `convolve` returns, NaN from the first number on that is not
        finite.
    """
    time = ops.shape(sequences)[-1]
    steps = ops.arange(time, dtype="int32")
    broken = ~ops.isfinite(sequences)
    broken = ops.cumsum(ops.cast(broken, "int32"), axis=-1) > 0
    numbers = ops.where(broken, 0.0, sequences)
    magnitudes = ops.abs(numbers)

    def first(condition):
        places = ops.where(condition, steps, time)
        return ops.amin(places, axis=-1, keepdims=True)

    def respond(begin):
        """The piece that begins there: its response, and its end."""
        opening = ops.where(steps == begin, magnitudes, 0.0)
        opening = ops.amax(opening, axis=-1, keepdims=True)
        most = ops.where(is_cut, MOST_GROWTH * opening, float("inf"))
        end = first((steps > begin) & (magnitudes > most))
        # Zeros before the first number belong to its piece.
        is_piece = (steps >= begin) & (steps < end)
        response = convolve(ops.where(is_piece, numbers, 0.0))
        return ops.where(steps >= begin, response, 0.0), end

    def advance(outputs, begin):
        response, end = respond(begin)
        return outputs + response, end

    outputs, _ = ops.while_loop(
        lambda _, begin: ops.any(begin < time),
        advance,
        respond(ops.minimum(first(magnitudes > 0), time - 1)),
    )
    # Added, and not put in its place: a gradient of NaN stays one.
    return outputs + ops.where(broken, float("nan"), ops.zeros_like(numbers))


def differentiated(sequences, cotangents):
    """The sequences, zero behind the last output that is differentiated.

    A NaN there has no part in the gradient.

    Args:
        sequences: tensor (..., 1, time).
        cotangents: tensor (..., channels, time) of the outputs.
    """
    time = ops.shape(sequences)[-1]
    steps = ops.arange(time, dtype="int32")
    last = ops.where(cotangents != 0, steps, -1)
    last = ops.amax(last, axis=(-2, -1), keepdims=True)
    return ops.where(steps <= last, sequences, 0.0)
