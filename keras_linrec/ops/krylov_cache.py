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
from keras_linrec.ops.structured_state import doubled

# The sequences to be ready for where their length is unknown.
_LONGEST = 16384
# What is larger, 256 MB in float32, is not kept.
_MOST_ENTRIES = 2**26


class CacheSize(NamedTuple):
    """S, and how often blocks of S steps are doubled to the longest."""

    block: int
    doublings: int

    @property
    def longest(self):
        return self.block * 2**self.doublings


def cache_size(state_size, time=None):
    """The sizes for sequences of `time` steps; if `None`, of up to 16384.

    Columns are cheap beside powers until there are N of them.
    """
    time = _LONGEST if time is None else time
    wanted = min(max(state_size, math.sqrt(time)), time)
    block = 2 ** math.ceil(math.log2(wanted))
    doublings = math.ceil(math.log2(time / block)) if time > block else 0
    return CacheSize(block, doublings)


def cached_shapes(size, features, state_size):
    """The shapes of the columns and of the powers."""
    return (
        (features, state_size, size.block),
        (size.doublings, features, state_size, state_size),
    )


def fits_memory(size, features, state_size):
    """Whether the columns and powers are small enough to be kept."""
    shapes = cached_shapes(size, features, state_size)
    return sum(map(math.prod, shapes)) <= _MOST_ENTRIES


def kept(known, variables, compute):
    """What `compute` gives, computed anew where `known` is.

    Args:
        known: tensor, all that the result hangs on.
        variables: the variable that holds what was known when the result was
            computed, and those that hold the result.
        compute: a function of nothing that returns the result, tensors.
    """
    if keras.backend.backend() == "torch" and exporting():
        # PyTorch's exporter takes no choice between two computations.
        return compute()
    before, *parts = (ops.convert_to_tensor(v) for v in variables)
    was_concrete = _is_concrete(before)
    same = ops.all(ops.equal(known, before))
    if was_concrete and _is_concrete(known):
        # No variable is written to unless it has to be: PyTorch may still
        # need what it holds for a gradient.
        if bool(same):
            return parts
        parts = compute()
    else:
        parts = ops.cond(same, lambda: tuple(parts), compute)
        if was_concrete:
            # A function that the user compiles with JAX, outside of Keras'
            # trainers: what it traces must not stay in a variable.
            return parts
    for variable, value in zip(variables, (known, *parts)):
        variable.assign(value)
    return parts


def _is_concrete(tensor):
    """Whether the values are there, and not those of a traced function."""
    try:
        ops.convert_to_numpy(tensor)
    except Exception:  # Every backend has an error of its own.
        return False
    return True


def cached_parts(size, delta, input_vector):
    """The columns and the powers.

    Args:
        size: `CacheSize`.
        delta: tensor (features, N, N), Abar - I.
        input_vector: tensor (features, N), Bbar.
    """
    columns = input_vector[..., None]
    while columns.shape[-1] < size.block:
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
    count = -(-time // columns.shape[-1])
    rows = output_matrix[None]
    for delta in ops.unstack(powers) if powers.shape[0] else ():
        more = rows[: max(count - rows.shape[0], 0)]
        more = more + ops.einsum("jfmn,fnk->jfmk", more, delta)
        rows = ops.concatenate([rows, more])
    response = ops.einsum("jfmn,fni->fmji", rows, columns)
    response = ops.reshape(response, (features, channels, -1))
    return response[..., :time]
