"""Results of the core so large that they are stored past the caches."""

import itertools

import numpy as np
import pytest
from one_backend.torch.core.test_native_core import DTYPES
from one_backend.torch.core.test_native_core import FIELDS
from one_backend.torch.core.test_native_core import NONE
from one_backend.torch.core.test_native_core import Numbers
from one_backend.torch.core.test_native_core import call
from one_backend.torch.core.test_native_core import decay_shape
from one_backend.torch.core.test_native_core import flags_of
from support.needs_native import require_native

require_native()

# 17.7 MB in float32, and channels that do not fill the widest registers.
SIZES = 1, 3, 2801, 528


def aligned(shape, dtype):
    """An array that starts with a cache line, as those of frameworks do."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, "uint8")
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def results_of(random, *shapes):
    return [
        [aligned(shape, random.dtype) for _ in range(random.parts)]
        for shape in shapes
    ]


def half(quantities, index):
    """Half of the channels of arrays (..., channels), in new arrays."""
    middle = SIZES[-1] // 2
    part = slice(index * middle, (index + 1) * middle)
    return [[np.ascontiguousarray(p[..., part]) for p in q] for q in quantities]


def scanned(random, flags, sizes, given, resets):
    """The results of a scan, and its gradients."""
    decay, inputs, initial, d_outputs, d_final = given
    results = results_of(random, sizes, initial[0].shape)
    call("scan", flags, sizes, (decay, inputs, resets, initial), results)
    operands = decay, results[0], resets, initial, d_outputs, d_final
    shapes = decay[0].shape, sizes, initial[0].shape
    gradients = results_of(random, *shapes)
    call("scan_backward", flags, sizes, operands, gradients)
    return results + gradients


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
    marks = random.resets(*rows)
    for reverse, resets in itertools.product((False, True), (None, marks)):
        flags = flags_of(field, per_step, reverse, dtype) + 128 * bool(resets)
        resets = resets or NONE
        whole = scanned(random, flags, SIZES, given, resets)
        for index in range(2):
            sizes = *rows, channels // 2
            parts = scanned(random, flags, sizes, half(given, index), resets)
            for one, other in zip(half(whole, index), parts, strict=True):
                np.testing.assert_array_equal(one, other)
