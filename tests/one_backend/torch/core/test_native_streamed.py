"""Results of the core so large that they are stored past the caches."""

import itertools

import numpy as np
import pytest
from one_backend.torch.core.test_native_core import DTYPES
from one_backend.torch.core.test_native_core import FIELDS
from one_backend.torch.core.test_native_core import Numbers
from one_backend.torch.core.test_native_core import decay_shape
from one_backend.torch.core.test_native_core import flags_of
from support.core_calls import results_of
from support.needs_native import require_native

from keras_linrec.kernels.native.table import Call

require_native()

# 17.7 MB in float32, and channels that do not fill the widest registers.
SIZES = 1, 3, 2801, 528


def aligned(shape, dtype):
    """An array that starts with a cache line, as those of frameworks do."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, "uint8")
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def half(quantities, index):
    """Half of the channels of arrays (..., channels), in new arrays."""
    middle = SIZES[-1] // 2
    part = slice(index * middle, (index + 1) * middle)
    return [[np.ascontiguousarray(p[..., part]) for p in q] for q in quantities]


def scanned(call, given, resets, dtype):
    """The results of a scan, and its gradients."""
    decay, inputs, initial, *cotangents = given
    operands = decay, inputs, resets, initial
    results = results_of(call, operands, dtype, empty=aligned)
    operands = decay, results[0], resets, initial, *cotangents
    return results + results_of(call.backward, operands, dtype, empty=aligned)


@pytest.mark.rest
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_results_equal_those_of_half_the_channels(dtype, field, per_step):
    *rows, channels = SIZES
    groups, batch, _ = rows
    random = Numbers(field, dtype)
    states = groups, batch, channels
    shapes = decay_shape(*SIZES, per_step), SIZES, states, SIZES, states
    given = [random.make(*shape) for shape in shapes]
    for reverse, resets in itertools.product(
        (False, True), random.resets(*rows)
    ):
        call = Call("scan", flags_of(field, per_step, reverse, resets))
        whole = scanned(call, given, resets, dtype)
        for index in range(2):
            parts = scanned(call, half(given, index), resets, dtype)
            for one, other in zip(half(whole, index), parts, strict=True):
                np.testing.assert_array_equal(one, other)
