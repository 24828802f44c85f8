"""The errors of the operations when products round their operands.

    KERAS_BACKEND=jax python tests/accelerators/precision.py

Prints the table of docs/guides/accelerators.md. No device is needed: portable
kernels run on the CPU, in float32, and `tests/support/rounded_products.py`
rounds the operands of their products as GPUs (TF32) and TPUs (bfloat16) do by
default. Errors are relative to the largest value, against the same in float64.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import pytest
from keras import ops
from support.rounded_products import rounded

from keras_linrec import config
from keras_linrec import ops as linrec
from keras_linrec.kernels import backends
from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.impulse_response import impulse_response

BATCH, TIME, FEATURES, STATES = 4, 784, 32, 64


def cases():
    """`(name, function of a list, arrays, names of the first arrays)`.

    Gradients of the arrays without a name, such as imaginary parts, are left
    out of the table.
    """
    rng = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return scale * rng.standard_normal(shape)

    inputs = normal(BATCH, TIME, FEATURES)
    radius, angle = rng.uniform((0.9, 0), (0.999, 3), (STATES, 2)).T
    decays = radius * np.cos(angle), radius * np.sin(angle)
    into = [normal(FEATURES, STATES, scale=0.1) for _ in range(2)]
    out = [normal(STATES, FEATURES, scale=0.1) for _ in range(2)]
    yield (
        "scan, complex",
        lambda given: linrec.complex_linear_scan(given[::3], given[1:3]),
        [decays[0], *normal(2, BATCH, TIME, STATES), decays[1]],
        ("decays", "inputs"),
    )
    yield (
        "projected scan, complex",
        lambda given: linrec.projected_scan(
            (given[0], given[4]),
            given[1],
            (given[2], given[5]),
            (given[3], given[6]),
        ),
        [decays[0], inputs, into[0], out[0], decays[1], into[1], out[1]],
        ("decays", "inputs", "input kernel", "output kernel"),
    )
    yield (
        "nonlinear scan, tanh",
        lambda given: linrec.nonlinear_scan(*given),
        [
            inputs,
            normal(FEATURES, STATES, scale=0.1),
            np.linalg.qr(normal(STATES, STATES))[0],
        ],
        ("inputs", "input kernel", "recurrent kernel"),
    )
    steps = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), FEATURES))
    yield (
        f"impulse response, HiPPO of {STATES}",
        lambda given: impulse_response(given[2:], *given[:2], TIME),
        [steps, normal(FEATURES, 1, STATES), *hippo("legs", STATES)],
        ("timescale", "C"),
    )
    yield (
        "causal convolution",
        lambda given: linrec.causal_convolution(*given),
        [inputs, normal(FEATURES, 1, TIME)],
        ("inputs", "response"),
    )


def results(function, arrays, dtype):
    """Outputs and gradients, for cotangents of random numbers."""

    def tensors(arrays):
        return [ops.convert_to_tensor(np.asarray(a), dtype) for a in arrays]

    given = tensors(arrays)

    def flat(given):
        return keras.tree.flatten(function(given))

    rng = np.random.default_rng(1)
    outputs = flat(given)
    cotangents = tensors(rng.standard_normal(part.shape) for part in outputs)
    found = backends.current().vjp(flat, given, cotangents)
    return len(outputs), [
        np.asarray(ops.convert_to_numpy(part), "float64") for part in found
    ]


def errors(function, arrays, kind):
    """The errors of the first output and of the gradients, of real parts."""
    arrays = [np.asarray(array, "float32") for array in arrays]
    count, expected = results(function, arrays, "float64")
    with pytest.MonkeyPatch.context() as patch:
        if kind != "float32":
            rounded(patch, kind)
        _, found = results(function, arrays, "float32")
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()
    all_errors = [
        np.abs(one - other).max() / np.abs(other).max()
        for one, other in zip(found, expected)
    ]
    return all_errors[0], all_errors[count:]


def main():
    kinds = "float32", "tf32", "bfloat16"
    print("| operation | of | float32 | TF32 | bfloat16 |")
    print("|---|---|---|---|---|")
    for name, function, arrays, arguments in cases():
        found = [errors(function, arrays, kind) for kind in kinds]
        rows = {"outputs": [output for output, _ in found]}
        for index, argument in enumerate(arguments):
            rows[f"d {argument}"] = [slopes[index] for _, slopes in found]
        for row, numbers in rows.items():
            cells = " | ".join(f"{number:.0e}" for number in numbers)
            print(f"| {name} | {row} | {cells} |", flush=True)
            name = ""


if __name__ == "__main__":
    with config.portable_kernels():
        main()
