"""The scan of states that are matrices: the delta rule and its family.

Products of one step follow each other on an axis behind the time. `steps` is
the reference, one product after another.
"""

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.native.call_encoding import LOGARITHMIC
from keras_linrec.kernels.native.call_encoding import reset_flag
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.matrix_by_chunks import (
    matrix_scan_by_chunks,
)
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.record import is_short
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.resets import or_none


def matrix_scan(
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
    """`(outputs, final_state)`, one product after another.

    Args:
        queries: tensor (batch, time, query heads, key_dim).
        keys: tensor (batch, time, m, key heads, key_dim). Queries and keys are
            each shared by groups of neighbouring heads if they have fewer.
        values: tensor (batch, time, m, heads, value_dim).
        decay: tensor (batch, time, heads, 1 or key_dim), or `None`: 1.
        erase: tensor (batch, time, m, heads), or `None`: 0.
        write: tensor (batch, time, m, heads), or `None`: 1.
        resets: tensor (batch, time), see `resets.py`, or `None`.
        initial_state: tensor (batch, heads, key_dim, value_dim).
        logarithmic: whether `decay` has the logarithms of the decays.

    Returns:
        Tensors (batch, time, heads, value_dim) and (batch, heads, key_dim,
        value_dim).
    """
    batch, heads, key_dim, value_dim = ops.shape(initial_state)
    time, products = ops.shape(queries)[1], keys.shape[2]
    if decay is not None:
        if resets is not None:
            # Not used there, whatever it is.
            decay = ops.where(resets[..., None, None] != 0, 0.0, decay)
        decay = ops.exp(decay) if logarithmic else decay
    given = {
        "keys": _of_each_head(keys, heads),
        "values": values,
        "decay": decay,
        "erase": erase,
        "write": write,
        "resets": resets,
    }
    # A loop takes sequences of vectors.
    shapes = {
        name: tuple(part.shape[2:])
        for name, part in given.items()
        if part is not None
    }
    sequences = [
        ops.reshape(given[name], (batch, time, int(np.prod(shape))))
        for name, shape in shapes.items()
    ]

    def step(state, items, constants):
        now = {
            name: ops.reshape(item, (batch, *shape))
            for item, (name, shape) in zip(items, shapes.items())
        }
        state = ops.reshape(state, (batch, heads, key_dim, value_dim))
        state = _next_state(state, products=products, **now)
        return ops.reshape(state, (batch, heads * key_dim * value_dim))

    state = ops.reshape(initial_state, (batch, heads * key_dim * value_dim))
    if isinstance(time, int) and time == 1:
        states = step(state, [part[:, 0] for part in sequences], ())[:, None]
    else:
        states = backends.current().loop(step, sequences, state, ())
    shape = (batch, time, heads, key_dim, value_dim)
    states = ops.reshape(states, shape)
    queries = _of_each_head(queries, heads)
    return ops.sum(ops.expand_dims(queries, -1) * states, axis=3), states[:, -1]


def _of_each_head(part, heads):
    shared = part.shape[-2]
    return part if shared == heads else ops.repeat(part, heads // shared, -2)


def _next_state(
    state,
    keys,
    values,
    products,
    decay=None,
    erase=None,
    write=None,
    resets=None,
):
    """The state after the products of one step."""
    if resets is not None:
        state = ops.where(ops.reshape(resets, (-1, 1, 1, 1)) != 0, 0.0, state)
    if decay is not None:
        state = decay[..., None] * state
    for j in range(products):
        key = keys[:, j, :, :, None]
        change = values[:, j]
        if write is not None:
            change = write[:, j, :, None] * change
        if erase is not None:
            # Not a product of matrices, which may be rounded.
            found = ops.sum(key * state, axis=2)
            change = change - erase[:, j, :, None] * found
        state = state + key * change[:, :, None]
    return state


# How it runs.


# Rows of a head from one checkpoint to the next. Their blocks, which the
# backward pass keeps, take some 200 KiB with 64 x 64 numbers in a state.
_ROWS_OF_CHECKPOINTS = 64


def _form_of(case, kernel):
    if kernel.matrix_scan is matrix_scan:
        return "fused", "one product after another"
    if is_short(case):
        return "steps", "a few steps"
    return fused(case, kernel.matrix_scan, "chunks")


def _matrix_scan_case(kernel, sizes=(2, 4, 2, 2, 3)):
    """Two products a step, a key for two heads, a reset and a decay of 0."""
    batch, time, heads, key_dim, value_dim = sizes
    steps = batch, time, 2
    arrays = numbers(
        (batch, time, heads, key_dim),
        (*steps, 1, key_dim),
        (*steps, heads, value_dim),
        (batch, time, heads, key_dim),
        (*steps, heads),
        (*steps, heads),
        (batch, heads, key_dim, value_dim),
    )
    cotangents = numbers(
        (batch, time, heads, value_dim), (batch, heads, key_dim, value_dim)
    )
    arrays[3][-1, 1] = 0.0
    resets = np.zeros((batch, time), "float32")
    resets[0, 2] = 1.0

    def function(tensors):
        *operands, state = tensors
        given = keras.ops.convert_to_tensor(resets)
        return list(kernel.matrix_scan(*operands, given, state))

    def define(queries, keys, values, decay, erase, write, state):
        outputs = []
        for t in range(time):
            state = np.where(resets[:, t, None, None, None] > 0, 0.0, state)
            state = decay[:, t, :, :, None] * state
            for j in range(2):
                found = np.einsum("bok,bhkv->bhv", keys[:, t, j], state)
                change = write[:, t, j, :, None] * values[:, t, j]
                change = change - erase[:, t, j, :, None] * found
                added = np.einsum("bok,bhv->bhkv", keys[:, t, j], change)
                state = state + added
            outputs.append(np.einsum("bhk,bhkv->bhv", queries[:, t], state))
        return [np.stack(outputs, axis=1), state]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _call_native(
    run,
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
    if decay is None:
        decay = values[:, :, 0, :, :0]
    nowhere = values[:, :, :, :0, 0]
    erase, write = (
        nowhere if part is None else part for part in (erase, write)
    )
    flags = LOGARITHMIC * logarithmic + reset_flag(resets)
    block = max(1, _ROWS_OF_CHECKPOINTS // keys.shape[2])
    return run(
        Call("matrix_scan", flags, (block,)),
        queries,
        keys,
        values,
        decay,
        erase,
        write,
        resets,
        initial_state,
    )


def _call_plain(kernel, call, *quantities):
    *sequences, decay, erase, write, resets, initial_state = quantities
    return matrix_scan_by_chunks(
        *sequences,
        *(part if part.shape[-1] else None for part in (decay, erase, write)),
        or_none(resets),
        initial_state,
        bool(call.flags & LOGARITHMIC),
    )


OPERATION = Operation(
    function="matrix_scan",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.matrix_scan,
        "steps": lambda kernel: matrix_scan,
        "chunks": lambda kernel: matrix_scan_by_chunks,
    },
    plain=lambda kernel: matrix_scan_by_chunks,
    reference=matrix_scan,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_matrix_scan_case,),
    along_time=False,
)
