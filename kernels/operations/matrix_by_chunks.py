"""The scan of matrix states in products of all rows of a chunk.

A row is one product of a step: S <- D S + k_i (w_i v_i - e_i (D S)^T k_i)^T,
where D = diag(a_t) in the first row of a step, and the identity in others. With
D_ij the product of these behind row j up to row i, a chunk of n rows has

    L_ij = e_i k_i^T D_ij k_j (j < i),    T = (I + L)^-1,
    U = T (w_i v_i)_i,    W = T (e_i D_i0 k_i)_i,

and takes a state S to (D_n0 - K^T W) S + K^T U, where the rows of K are D_nj
k_j: the compact form of a product of reflections. The outputs follow from S
likewise. All of it is computed for all chunks of a group at once, but for the
states between them. Groups follow each other, and the gradient computes a group
again: of 2^20 steps, all chunks at once would take tens of gigabytes.

Products of decays, L and T grow from halves, blocks of 1, 2, 4, ... rows. What
joins two halves are products of decays: for a row of the second, from the
half's start up to it; for one of the first, from behind it to the end. Nothing
is divided. So no quotient can overflow, also with a decay for each key channel,
where the usual factors D_i0 and 1 / D_j0 do; and decays of 0 are exact, their
gradients too. Logarithms of decays are added in the same way, which keeps those
of decays close to 1 exact.

At a reset the decay is 0, and the state before the chunk is dropped. Zeros do
not stop NaN and infinities from reaching the next sequence of a row. So with
resets these are taken out, and what they would have reached is set to NaN.
"""

import math
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.resets import segment_ids

# Rows in a chunk, a power of 2. Forward and backward of 2,048 steps of 8 heads
# of 64 x 64, on two busy cores, take 0.66 s on JAX and 1.71 s on PyTorch; with
# 64 rows 0.66 and 1.66, and rounding errors twice as large; with 16 rows 0.82
# and 2.24.
_MOST_ROWS = 32
_LEAST_ROWS = 8
# Numbers that the chunks of a group may take. Those of (4, 2048, 8, 64, 64) are
# about as many, and one group.
_NUMBERS_OF_GROUP = 2**26


class _Rows(NamedTuple):
    """Rows of steps (batch, time, m, heads, n), or of chunks (chunks, size, n).

    The chunks are those of all heads of all rows of the batch, in this order.
    """

    queries: object  # (key_dim,), zero where a row does not end a step
    keys: object  # (key_dim,)
    values: object  # (value_dim,)
    decay: object  # (1,) or (key_dim,), or `None`
    erase: object  # (1,), or `None`
    write: object  # (1,), or `None`
    resets: object  # (1,), or `None`


class _Chunks(NamedTuple):
    """What chunks do to a state S, and their outputs, (chunks, ...).

    A chunk takes S to `transition @ S + addition`. The outputs of its rows are
    `response @ S + outputs`.
    """

    # (key_dim, key_dim); (1 or key_dim, 1) by entries if nothing is erased.
    transition: object
    addition: object  # (key_dim, value_dim)
    response: object  # (size, key_dim)
    outputs: object  # (size, value_dim)


def matrix_scan_by_chunks(
    queries,
    keys,
    values,
    decay,
    erase,
    write,
    resets,
    initial_state,
    logarithmic=False,
):
    """See `matrix_scan.py`."""
    arithmetic = _Sums if logarithmic else _Products
    steps = _Rows(queries, keys, values, decay, erase, write, resets)
    length = _group_length(steps, initial_state)
    if length is None:
        return _scan_of_group(steps, initial_state, arithmetic)
    return _by_groups(steps, initial_state, arithmetic, length)


def _rows_of_a_chunk(key_dim):
    """Twice the key channels at most, and eight at least.

    More reflections than a key has channels cancel each other: 70 steps with 5
    channels, in chunks of 32, 16 and 8 rows, are off by 15e-7, 8e-7 and 4e-7;
    with 32 channels or more, 32 rows are as exact as step after step.
    """
    most = 1 << ((2 * key_dim).bit_length() - 1)
    return min(_MOST_ROWS, max(_LEAST_ROWS, most))


# Groups.


def _group_length(steps, initial_state):
    """The steps of a group; `None` if all are one."""
    batch, heads, key_dim, value_dim = initial_state.shape
    time, products = steps.values.shape[1:3]
    if not all(isinstance(size, int) for size in (batch, time)):
        return None
    # What chunks do, some copies of their rows, and their triangles.
    size = _rows_of_a_chunk(key_dim)
    numbers = key_dim * (key_dim + value_dim) + 6 * size**2
    numbers += 4 * size * (key_dim + value_dim)
    rows = batch * heads * products
    most = max(size, _NUMBERS_OF_GROUP * size // max(1, numbers * rows))
    if time <= most:
        return None
    # Of almost equal length, so that the last one is not mostly filled up.
    count = -(-time // most)
    return -(-time // (count * size)) * size


def _by_groups(steps, initial_state, arithmetic, length):
    """`matrix_scan_by_chunks`, some steps after others."""
    batch, time = steps.queries.shape[:2]
    count = -(-time // length)
    shapes, sequences = {}, []
    for name, part in steps._asdict().items():
        if part is None:
            continue
        filling = arithmetic.neutral if name == "decay" else 0.0
        rest = tuple(part.shape[2:])
        padding = [[0, 0], [0, count * length - time]] + [[0, 0]] * len(rest)
        part = ops.pad(part, padding, constant_values=filling)
        shapes[name] = batch, length, *rest
        numbers = length * math.prod(rest)
        sequences.append(ops.reshape(part, (batch, count, numbers)))
    state_shape, states = (
        initial_state.shape,
        math.prod(initial_state.shape[1:]),
    )
    heads, value_dim = steps.values.shape[3:]

    @keras.remat
    def group(state, *items):
        given = {
            name: ops.reshape(item, shape)
            for item, (name, shape) in zip(items, shapes.items())
        }
        outputs, state = _scan_of_group(
            steps._replace(**given),
            ops.reshape(state, state_shape),
            arithmetic,
        )
        # A loop returns its states: the outputs are part of them.
        flat = (ops.reshape(part, (batch, -1)) for part in (state, outputs))
        return ops.concatenate(list(flat), axis=-1)

    state = ops.reshape(initial_state, (batch, states))
    outputs = ops.zeros((batch, length * heads * value_dim), state.dtype)
    found = backends.current().loop(
        # Cut before, since the gradient keeps the arguments of a group.
        lambda state, items, constants: group(state[:, :states], *items),
        sequences,
        ops.concatenate([state, outputs], axis=-1),
        (),
    )
    outputs = ops.reshape(
        found[:, :, states:], (batch, count * length, heads, value_dim)
    )
    return outputs[:, :time], ops.reshape(found[:, -1, :states], state_shape)


def _scan_of_group(steps, initial_state, arithmetic):
    """`(outputs, final_state)`, all chunks at once but for their states."""
    batch, heads, key_dim, value_dim = ops.shape(initial_state)
    resets = steps.resets
    time, products = ops.shape(steps.queries)[1], steps.keys.shape[2]
    rows, count = _rows_of_chunks(steps, arithmetic)
    if resets is None:
        chunks = _chunks_of(rows, arithmetic)
    else:
        rows, is_reached, is_bad_query = _without_bad_numbers(rows, arithmetic)
        chunks = _chunks_of(rows, arithmetic)
        chunks = chunks._replace(
            addition=ops.where(is_reached[:, -1:], np.nan, chunks.addition),
            outputs=ops.where(
                is_reached | is_bad_query, np.nan, chunks.outputs
            ),
        )
    states = _states_between(chunks, rows.resets, initial_state, count)
    size = rows.keys.shape[1]
    before = (batch * heads * count, key_dim, value_dim)
    before = ops.reshape(states[:, :-1], before)
    outputs = _outputs_of(chunks, rows.resets, before)
    outputs = ops.reshape(outputs, (batch, heads, count * size, value_dim))
    outputs = outputs[:, :, products - 1 : time * products : products]
    final_state = ops.reshape(states[:, -1], ops.shape(initial_state))
    return ops.transpose(outputs, (0, 2, 1, 3)), final_state


# Rows.


def _rows_of_chunks(steps, arithmetic):
    """`_Rows` of chunks, and the number of chunks of a head.

    Args:
        steps: `_Rows` of what `matrix_scan.py` takes.
        arithmetic: that of the decays.
    """
    products, heads = steps.values.shape[2:4]
    decay, resets = steps.decay, steps.resets
    if resets is not None:
        resets = resets[..., None, None]
        if decay is None:
            decay = ops.full_like(resets, arithmetic.neutral)
    erase, write = (
        None if part is None else ops.expand_dims(part, -1)
        for part in (steps.erase, steps.write)
    )
    others, neutral = products - 1, arithmetic.neutral
    rows = _Rows(
        _beside(steps.queries, others, 0),
        steps.keys,
        steps.values,
        _beside(decay, 0, others, neutral),
        erase,
        write,
        _beside(resets, 0, others),
    )
    length = ops.shape(steps.queries)[1] * products
    size = _rows_of_a_chunk(steps.keys.shape[-1])
    if isinstance(length, int):
        size = min(size, 1 << (length - 1).bit_length())
    count = -(-length // size)
    if keras.backend.backend() == "torch" and not isinstance(length, int):
        # It would export a program for a single chunk, or for whole ones.
        count = length // size + 2

    def in_chunks(part, filling=0.0):
        if part is None:
            return None
        part = _padded(part, count * size - length, filling)
        return _of_each_head(part, heads, count, size)

    found = {name: in_chunks(part) for name, part in rows._asdict().items()}
    found["decay"] = in_chunks(rows.decay, neutral)
    return _Rows(**found), count


def _beside(part, before, behind, filling=0.0):
    """What a step has, as that of one of its products.

    Args:
        part: tensor (batch, time, heads, n), or `None`.
        before, behind: integers, the products before and behind this one.
        filling: what they have.

    Returns:
        A tensor (batch, time, products, heads, n), or `None`.
    """
    if part is None:
        return None
    part = ops.expand_dims(part, 2)
    other = ops.full_like(part, filling)
    parts = [other] * before + [part] + [other] * behind
    return ops.concatenate(parts, axis=2) if len(parts) > 1 else part


def _padded(part, missing, filling):
    """(batch, time, m, heads, n) as (batch, heads, rows, n), and some more."""
    batch, time, products, heads, numbers = ops.shape(part)
    part = ops.transpose(part, (0, 3, 1, 2, 4))
    part = ops.reshape(part, (batch, heads, time * products, numbers))
    if isinstance(missing, int) and missing == 0:
        return part
    padding = [[0, 0], [0, 0], [0, missing], [0, 0]]
    return ops.pad(part, padding, constant_values=filling)


def _of_each_head(part, heads, count, size):
    """(batch, heads, rows, n) as (chunks, size, n).

    The rows of queries and keys that groups of heads share are repeated.
    """
    batch, shared, _, numbers = ops.shape(part)
    if shared < heads:
        part = ops.repeat(part, heads // shared, axis=1)
    return ops.reshape(part, (batch * heads * count, size, numbers))


# Decays.


class _Products:
    """Decays as they are."""

    neutral = 1.0
    zero = 0.0

    @staticmethod
    def joined(one, other):
        return one * other

    @staticmethod
    def factor(decay):
        return decay


class _Sums:
    """Logarithms of decays."""

    neutral = 0.0
    zero = -np.inf

    @staticmethod
    def joined(one, other):
        return one + other

    @staticmethod
    def factor(decay):
        return ops.exp(decay)


class _Levels(NamedTuple):
    """Products of decays within blocks of 1, 2, 4, ... rows.

    Lists, with a tensor (chunks, blocks, rows, n) for each level: the product
    of a block's decays up to a row, its own included, and of those behind it.
    """

    up_to: list
    behind: list


def _levels_of(decay, arithmetic):
    up_to = [ops.expand_dims(decay, 2)]
    behind = [ops.full_like(up_to[0], arithmetic.neutral)]
    while up_to[-1].shape[1] > 1:
        first, second = _halves(up_to[-1])
        early, late = _halves(behind[-1])
        early = arithmetic.joined(early, second[:, :, -1:])
        second = arithmetic.joined(first[:, :, -1:], second)
        up_to.append(ops.concatenate([first, second], axis=2))
        behind.append(ops.concatenate([early, late], axis=2))
    return _Levels(up_to, behind)


def _halves(blocks):
    """The first and the second of every two blocks (chunks, blocks, ...)."""
    chunks, count, *block = ops.shape(blocks)
    pairs = ops.reshape(blocks, (chunks, count // 2, 2, *block))
    return pairs[:, :, 0], pairs[:, :, 1]


def _in_blocks(rows, height):
    """(chunks, size, n) as (chunks, size / height, height, n)."""
    chunks, size, numbers = ops.shape(rows)
    return ops.reshape(rows, (chunks, size // height, height, numbers))


# Lower triangular matrices of a chunk.


def _crossings(rows, columns, levels, arithmetic):
    """What joins the halves of a matrix: row_i^T D_ij column_j.

    Args:
        rows, columns: tensors (chunks, size, key_dim).
        levels: `_Levels`, or `None` without decays.
        arithmetic: that of the decays.

    Returns:
        A list of tensors (chunks, size / 2r, r, r), for r = 1, 2, 4, ...
    """
    found = []
    for level in range((rows.shape[1] - 1).bit_length()):
        second = _halves(_in_blocks(rows, 2**level))[1]
        first = _halves(_in_blocks(columns, 2**level))[0]
        if levels is None:
            found.append(matmul(second, _transposed(first)))
            continue
        up_to = _halves(levels.up_to[level])[1]
        behind = _halves(levels.behind[level])[0]
        if up_to.shape[-1] == 1:
            # On products: they are smaller than the rows.
            joined = arithmetic.joined(up_to, _transposed(behind))
            product = matmul(second, _transposed(first))
            found.append(arithmetic.factor(joined) * product)
        else:
            second = arithmetic.factor(up_to) * second
            first = arithmetic.factor(behind) * first
            found.append(matmul(second, _transposed(first)))
    return found


def _transposed(matrix):
    return ops.swapaxes(matrix, -1, -2)


def _triangular(diagonal, crossings):
    """The matrix with a diagonal (chunks, size)."""
    return _grown(diagonal, crossings, lambda first, second, part: part)


def _inverse(diagonal, crossings):
    """The inverse of the matrix with a diagonal of ones."""

    def join(first, second, part):
        return -matmul(second, matmul(part, first))

    return _grown(diagonal, crossings, join)


def _grown(diagonal, crossings, join):
    blocks = ops.expand_dims(diagonal, (2, 3))
    for part in crossings:
        first, second = _halves(blocks)
        joined = join(first, second, part)
        above = ops.concatenate([first, ops.zeros_like(joined)], axis=3)
        below = ops.concatenate([joined, second], axis=3)
        blocks = ops.concatenate([above, below], axis=2)
    return blocks[:, 0]


# Chunks.


def _chunks_of(rows, arithmetic):
    """The `_Chunks` of `_Rows`."""
    keys, queries, values = rows.keys, rows.queries, rows.values
    if rows.write is not None:
        values = rows.write * values
    levels, early, late = None, ops.ones_like(keys[:, :, :1]), None
    if rows.decay is not None:
        levels = _levels_of(rows.decay, arithmetic)
        early, late = (
            arithmetic.factor(part[-1][:, 0])
            for part in (levels.up_to, levels.behind)
        )
    total = _transposed(early[:, -1:])
    to_state = _transposed(keys if late is None else late * keys)
    crossings = _crossings(queries, keys, levels, arithmetic)
    to_outputs = _triangular(ops.sum(queries * keys, axis=-1), crossings)
    response = early * queries
    if rows.erase is None:
        additions = matmul(to_state, values), response
        return _Chunks(total, *additions, matmul(to_outputs, values))
    crossings = _crossings(rows.erase * keys, keys, levels, arithmetic)
    inverse = _inverse(ops.ones_like(keys[:, :, 0]), crossings)
    values = matmul(inverse, values)
    erased = matmul(inverse, rows.erase * (early * keys))
    identity = ops.eye(keys.shape[2], dtype=keys.dtype)
    return _Chunks(
        total * identity - matmul(to_state, erased),
        matmul(to_state, values),
        response - matmul(to_outputs, erased),
        matmul(to_outputs, values),
    )


def _states_between(chunks, resets, initial_state, count):
    """The states before each of `count` chunks of a head, and after the last.

    Returns:
        A tensor (batch times heads, count + 1, key_dim times value_dim).
    """
    batch, heads, key_dim, value_dim = ops.shape(initial_state)
    rows, matrix = batch * heads, tuple(chunks.transition.shape[1:])

    # Of no size that a program for any batch computes.
    def step(state, items, constants):
        transition, addition, *is_broken = items
        if is_broken:
            # Before the product, for the gradient of the transition.
            state = ops.where(is_broken[0] != 0, 0.0, state)
        state = ops.reshape(state, (-1, key_dim, value_dim))
        transition = ops.reshape(transition, (-1, *matrix))
        if matrix[1] == 1:
            state = transition * state
        else:
            state = matmul(transition, state)
        return ops.reshape(state, (-1, key_dim * value_dim)) + addition

    sequences = [chunks.transition, chunks.addition]
    if resets is not None:
        sequences.append(ops.amax(resets, axis=1, keepdims=True))
    sequences = [
        ops.reshape(part, (rows, count, part.shape[1] * part.shape[2]))
        for part in sequences
    ]
    state = ops.reshape(initial_state, (rows, key_dim * value_dim))
    if isinstance(count, int) and count == 1:
        after = step(state, [part[:, 0] for part in sequences], ())[:, None]
    else:
        after = backends.current().loop(step, sequences, state, ())
    return ops.concatenate([state[:, None], after], axis=1)


def _outputs_of(chunks, resets, states):
    """The outputs of all rows, (chunks, size, value_dim).

    Args:
        chunks: `_Chunks`.
        resets: those of `_Rows`.
        states: the states before the chunks, (chunks, key_dim, value_dim).
    """
    if resets is None:
        return chunks.outputs + chunks.response @ states
    # The rows before the first reset.
    sees_state = segment_ids(resets) == 0
    response = ops.where(sees_state, chunks.response, 0.0)
    # NaN and infinities stay out of the product, whose gradient would pass
    # them on to all rows; what they reach is NaN.
    is_fine = ops.isfinite(states)
    is_broken = ops.logical_not(ops.all(is_fine, axis=1, keepdims=True))
    states = ops.where(is_fine, states, 0.0)
    outputs = ops.where(sees_state, response @ states, 0.0)
    outputs = outputs + chunks.outputs
    outputs = ops.where(sees_state & is_broken, np.nan, outputs)
    # The cotangent of a NaN may be one, and would reach other sequences.
    return ops.where(ops.isfinite(outputs), outputs, ops.stop_gradient(outputs))


# NaN and infinities in rows of several sequences.


def _without_bad_numbers(rows, arithmetic):
    """Rows of finite numbers, with decays of 0 at resets.

    Returns:
        `(rows, is_reached, is_bad_query)`: whether a number that was taken out
        would have reached a column of the state after a row, boolean (chunks,
        size, value_dim), and whether one was in a row's query, (chunks, size,
        1).
    """
    is_reset = rows.resets != 0
    decay = ops.where(is_reset, arithmetic.neutral, rows.decay)
    is_fine = {
        name: ops.isfinite(part)
        for name, part in rows._replace(decay=decay)._asdict().items()
        if part is not None
    }
    is_fine["decay"] = is_fine["decay"] | (decay == arithmetic.zero)
    is_bad = {
        name: ops.logical_not(ops.all(fine, axis=-1, keepdims=True))
        for name, fine in is_fine.items()
    }
    is_source = ops.logical_not(is_fine["values"]) | is_bad["keys"]
    for name in ("decay", "erase", "write"):
        if name in is_bad:
            is_source = is_source | is_bad[name]
    segments = segment_ids(rows.resets)
    place = ops.arange(0, rows.keys.shape[1], dtype="int32")
    is_connected = segments == _transposed(segments)
    is_connected = is_connected & (place[:, None] >= place)
    connected, sources = (
        ops.cast(part, rows.keys.dtype) for part in (is_connected, is_source)
    )
    cleaned = {
        name: ops.where(fine, getattr(rows, name), 0.0)
        for name, fine in is_fine.items()
    }
    decay = ops.where(is_reset, arithmetic.zero, cleaned["decay"])
    rows = rows._replace(**{**cleaned, "decay": decay})
    return rows, matmul(connected, sources) > 0, is_bad["queries"]
