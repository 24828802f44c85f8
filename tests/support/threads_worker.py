"""Prints a digest of the core's results, from calls one by one and at once."""

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core

COMPLEX, EULER, TANH, MODRELU = 1, 1 << 8, 3 << 12, 6 << 12
NO_RESETS = (0,)


def called(name, flags, sizes, from_shapes, to_shapes, change=None):
    """The results of a call on random arrays, which `change` may change."""
    random = np.random.default_rng(0)
    given = [
        random.uniform(-0.3, 0.3, shape).astype("float32")
        for shape in from_shapes
    ]
    if change:
        change(given)
    results = [np.zeros(shape, "float32") for shape in to_shapes]
    core.call(
        f"keras_linrec_{name}",
        flags,
        sizes,
        [array.ctypes.data for array in given],
        [array.ctypes.data for array in results],
    )
    return results


def scan(batch=5, time=300, channels=70):
    sequence, state = (batch, time, channels), (batch, channels)
    given = (channels,), sequence, NO_RESETS, state, sequence, state
    results = (channels,), sequence, state
    return called("scan_backward", 0, (1, *sequence), given, results)


def projected_scan(batch=3, time=3000, features=33, channels=40, units=37):
    block = block_length(2 * channels)
    kept = batch, time // block + 2, 2, channels
    operands = [
        *2 * [(channels,)],
        (batch, time, features),
        *2 * [(features, channels)],
        *2 * [(channels, units)],
    ]
    states = 2 * [(batch, channels)]
    return called(
        "projected_scan_backward",
        COMPLEX,
        (1, batch, time, features, channels, units, block),
        [*operands, NO_RESETS, kept, (batch, time, units), *states],
        [*operands, *states],
    )


def nonlinear_scan(
    batch=21,
    time=200,
    features=3,
    units=50,
    activation=TANH,
    moduli=0,
    change=None,
):
    states, leak = (batch, time, units), struct.pack("d", 0.0)
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
    return called(
        "nonlinear_scan_backward",
        EULER | activation,
        (1, batch, time, features, units, 0, time, time)
        + struct.unpack("q", leak),
        [*operands, states, states, (batch, units)],
        operands,
        change,
    )


def row_of_blocks():
    """More threads than rows: each takes what can be done of some block."""

    def silence_the_end(given):
        outputs, final = given[-2:]
        outputs[:, 12_000:] = 0
        final[:] = 0

    return nonlinear_scan(
        1, 16_000, activation=MODRELU, moduli=25, change=silence_the_end
    )


def digest(work):
    digest = hashlib.sha256()
    for results in work():
        digest.update(results.tobytes())
    return digest.hexdigest()


calls = [scan, projected_scan, nonlinear_scan, row_of_blocks]
one_by_one = [digest(call) for call in calls]
with ThreadPoolExecutor(4) as pool:
    at_once = list(pool.map(digest, 4 * calls))
same = at_once == 4 * one_by_one
print(build.core().keras_linrec_threads(), same, *one_by_one)
