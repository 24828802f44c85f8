"""What stays the same of an impulse response while A and dt do.

Step jS + i of K_k = C Abar^k Bbar is R_j X_i with R_j = C Abar^(jS) and
X_i = Abar^i Bbar: columns X and powers Abar^(S 2^k) - I, which know no C, take
O(H N (N log(L / S) + S)) of memory where the Krylov matrix takes H N L.
"""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.kernels.exporting import exporting
from keras_linrec.ops.transition_powers import doubled
from keras_linrec.ops.transition_powers import rows_of_powers

# The sequences to be ready for where their length is unknown.
_LONGEST = 16384
# What is larger, 256 MB in float32, is not kept.
_MOST_ENTRIES = 2**26


class CacheSize(NamedTuple):
    """S, and how often chunks of S steps are doubled to the longest."""

    chunk: int
    doublings: int

    @property
    def longest(self):
        return self.chunk * 2**self.doublings


def cache_size(state_size, time=None):
    """The sizes for sequences of `time` steps; if `None`, of up to 16384.

    Columns are cheap beside powers until there are N of them.
    """
    time = _LONGEST if time is None else time
    wanted = min(max(state_size, math.sqrt(time)), time)
    chunk = 2 ** math.ceil(math.log2(wanted))
    doublings = math.ceil(math.log2(time / chunk)) if time > chunk else 0
    return CacheSize(chunk, doublings)


def cached_shapes(size, features, state_size):
    """The shapes of the columns and of the powers."""
    return (
        (features, state_size, size.chunk),
        (size.doublings, features, state_size, state_size),
    )


def fits_memory(size, features, state_size):
    """Whether the columns and powers are small enough to be kept."""
    shapes = cached_shapes(size, features, state_size)
    return sum(map(math.prod, shapes)) <= _MOST_ENTRIES


def can_choose():
    """Whether a program can compute the parts only where they are new.

    PyTorch's exporter takes no choice between two computations.
    """
    return not (keras.backend.backend() == "torch" and exporting())


def cached_parts(size, transition_minus_identity, input_vector):
    """The columns and the powers.

    Args:
        size: `CacheSize`.
        transition_minus_identity: tensor (features, N, N), Abar - I.
        input_vector: tensor (features, N), Bbar.
    """
    delta = transition_minus_identity
    columns = input_vector[..., None]
    while columns.shape[-1] < size.chunk:
        columns = ops.concatenate([columns, columns + delta @ columns], axis=-1)
        delta = doubled(delta)
    if not size.doublings:
        return columns, ops.zeros((0, *delta.shape), delta.dtype)
    powers = [delta]
    while len(powers) < size.doublings:
        powers.append(doubled(powers[-1]))
    return columns, ops.stack(powers)


def cached_response(columns, powers, output_matrix, time):
    """K_k for k < time, (features, channels, time).

    Args:
        columns, powers: as from `cached_parts`.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps, at most the longest.
    """
    features, channels, _ = output_matrix.shape
    deltas = ops.unstack(powers) if powers.shape[0] else ()
    count = -(-time // columns.shape[-1])
    rows = rows_of_powers(deltas, output_matrix, count)
    response = ops.einsum("jfmn,fni->fmji", rows, columns)
    response = ops.reshape(response, (features, channels, -1))
    return response[..., :time]
