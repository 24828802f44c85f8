"""The part of an impulse response that depends only on A, B and dt.

Step jS + i of K_k = C Abar^k Bbar is R_j X_i with R_j = C Abar^(jS) and
X_i = Abar^i Bbar. The columns X and the powers Abar^(S 2^k) - I do not depend
on C; they take O(H N (N log(L / S) + S)) memory, the Krylov matrix H N L.
"""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.kernels.exporting import exporting
from keras_linrec.ops.transition_powers import doubled
from keras_linrec.ops.transition_powers import rows_of_powers

# The longest sequences to prepare for if the length is unknown.
_LONGEST = 16384
# A larger cache, 256 MB in float32, is not kept.
_MAX_ENTRIES = 2**26


class CacheSize(NamedTuple):
    """The chunk length S, and its doublings up to the longest sequence."""

    chunk: int
    doublings: int

    @property
    def longest(self):
        return self.chunk * 2**self.doublings


def cache_size(state_size, time=None):
    """The sizes for sequences of `time` steps; if `None`, of up to 16384.

    Up to N columns, columns are cheap in comparison with powers.
    """
    time = _LONGEST if time is None else time
    shortest = min(max(state_size, math.sqrt(time)), time)
    chunk = 2 ** math.ceil(math.log2(shortest))
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
    return sum(map(math.prod, shapes)) <= _MAX_ENTRIES


def can_choose():
    """Whether a program may recompute the cache conditionally.

    PyTorch's exporter does not support the conditional.
    """
    return not (keras.backend.backend() == "torch" and exporting())


def cached_parts(size, transition_minus_identity, input_vector):
    """The columns and the powers, tensors of the shapes of `cached_shapes`.

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
        columns, powers: the results of `cached_parts`.
        output_matrix: tensor (features, channels, N), C.
        time: integer, the number of steps, at most `CacheSize.longest`.
    """
    features, channels, _ = output_matrix.shape
    deltas = ops.unstack(powers) if powers.shape[0] else ()
    count = -(-time // columns.shape[-1])
    rows = rows_of_powers(deltas, output_matrix, count)
    response = ops.einsum("jfmn,fni->fmji", rows, columns)
    response = ops.reshape(response, (features, channels, -1))
    return response[..., :time]
