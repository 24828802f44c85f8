"""Prints a digest of the core's results, from calls one by one and at once."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from support.core_calls import results_of

from keras_linrec import activations
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import solver_flags
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import flatten

NO_RESETS = (0, 0)


def called(call, shapes, change=None):
    """The results of a call on random arrays, which `change` may change."""
    random = np.random.default_rng(0)
    given = [random.uniform(-0.3, 0.3, shape) for shape in shapes]
    if change:
        change(given)
    results = flatten(results_of(call, given, "float32"))
    # What the core does not write is NaN.
    assert any(np.nan_to_num(part).any() for part in results), call
    return results


def scan(batch=5, time=300, channels=70):
    sequence, state = (batch, time, channels), (batch, channels)
    given = (channels,), sequence, NO_RESETS, state, sequence, state
    return called(Call("scan_backward", 0), given)


def projected_scan(batch=3, time=3000, features=33, channels=40, units=37):
    block = block_length(2 * channels)
    kept = batch, checkpoint_count(time, block), 2, channels
    operands = [
        *2 * [(channels,)],
        (batch, time, features),
        *2 * [(features, channels)],
        *2 * [(channels, units)],
    ]
    states = 2 * [(batch, channels)]
    given = *operands, NO_RESETS, kept, (batch, time, units), *2 * states
    return called(Call("projected_scan_backward", COMPLEX, (block,)), given)


def nonlinear_scan(
    batch=21,
    time=200,
    features=3,
    units=50,
    activation=keras.activations.tanh,
    moduli=0,
    change=None,
):
    states = batch, time, units
    flags, leak = activation_flags(activation)
    flags |= solver_flags("euler")
    call = Call("nonlinear_scan_backward", flags, (leak,))
    operands = [
        (batch, time, features),
        (features, units),
        (units,),
        (units, units),
        (0, units),
        (1, 1),
        (moduli,),
        NO_RESETS,
        (batch, units),
    ]
    given = *operands, states, states, (batch, units)
    return called(call, given, change)


def row_of_blocks():
    """More threads than rows: each takes what can be done of some block."""

    def silence_the_end(given):
        outputs, final = given[-2:]
        outputs[:, 12_000:] = 0
        final[:] = 0

    return nonlinear_scan(
        1,
        16_000,
        activation=activations.modrelu,
        moduli=25,
        change=silence_the_end,
    )


def matrix_scan(batch=2, time=130, query_heads=9, heads=9, sizes=(24, 40)):
    """More heads than threads: each takes several at once."""
    key_dim, value_dim = sizes
    steps, block = (batch, time), 32
    outputs, state = (*steps, heads, value_dim), (batch, heads, *sizes)
    given = [
        (*steps, query_heads, key_dim),
        (*steps, 1, query_heads, key_dim),
        (*steps, 1, heads, value_dim),
        (*steps, heads, 1),
        *2 * [(*steps, 1, heads)],
        NO_RESETS,
        state,
    ]
    kept = batch, checkpoint_count(time, block), heads, *sizes
    forward, backward = (
        Call(name, 0, (block,))
        for name in ("matrix_scan", "matrix_scan_backward")
    )
    return [
        *called(forward, given),
        *called(backward, [*given, kept, outputs, state]),
    ]


def shared_queries():
    """Heads are cut, and what they share is added up."""
    return matrix_scan(1, query_heads=1, heads=3)


def digest(work):
    digest = hashlib.sha256()
    for results in work():
        digest.update(results.tobytes())
    return digest.hexdigest()


calls = [
    scan,
    projected_scan,
    nonlinear_scan,
    row_of_blocks,
    matrix_scan,
    shared_queries,
]
one_by_one = [digest(call) for call in calls]
with ThreadPoolExecutor(4) as pool:
    at_once = list(pool.map(digest, 4 * calls))
same = at_once == 4 * one_by_one
print(build.core().keras_linrec_threads(), same, *one_by_one)
