r"""What the tests with drawn cases share.

Hypothesis draws sizes, dtypes, decays and what goes wrong in a row: by default
200 cases, always the same ones for the same code. Two variables change that:

- `KERAS_LINREC_CASES=10000`: about as many new cases, in all such tests
  together;
- `KERAS_LINREC_COMPILED=yes` or `no`: whether they run in programs that the
  backend compiles. By default JAX compiles, TensorFlow and PyTorch do not.

A compiled program serves one combination of sizes and options. Compiled tests,
and all on JAX, have 20 of them, or 200 if `KERAS_LINREC_CASES` is set, and run
many values in each. For example

    KERAS_BACKEND=tensorflow KERAS_LINREC_CASES=10000 \
        KERAS_LINREC_COMPILED=yes python -m pytest \
        tests/*/test_*_properties.py

Hypothesis prints a case that fails in its smallest form.
"""

import os
from contextlib import contextmanager

import keras
import numpy as np
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
from support import programs
from support.programs import MODES

import keras_linrec

CASES = int(os.environ.get("KERAS_LINREC_CASES", "0"))
COMPILED = {"yes": True, "no": False, "": MODES[0] == programs.COMPILED}[
    os.environ.get("KERAS_LINREC_COMPILED", "")
]
# JAX compiles each operation for each shape, in programs or not.
FEW_SHAPES = COMPILED or programs.BACKEND == "jax"
NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])
SEEDS = st.integers(0, 2**32 - 1)


def cases(share):
    """The number of cases that a test draws, as a share of 200 or `CASES`."""
    return settings(
        max_examples=max(1, round(share * (CASES or 200))),
        derandomize=not CASES,
        database=None,
        deadline=None,
        suppress_health_check=[
            # Each test sets the seeds anew, but no case depends on them.
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
        ],
    )


def run_as_chosen(function):
    """A function of one structure of tensors, compiled or not."""
    return programs.program(
        function, programs.COMPILED if COMPILED else programs.EAGER
    )


@contextmanager
def kernel(name):
    keras_linrec.config.set_kernel(name)
    try:
        yield
    finally:
        keras_linrec.config.set_kernel(None)


def rounded(numbers, dtype="float32"):
    """Round to a dtype; the result is float64 or complex128."""
    if np.iscomplexobj(numbers):
        return rounded(numbers.real, dtype) + 1j * rounded(numbers.imag, dtype)
    if dtype == "bfloat16":
        bits = np.asarray(numbers, "float32").view("uint32")
        return (bits & 0xFFFF0000).view("float32").astype("float64")
    return np.asarray(numbers).astype(dtype).astype("float64")


def tensors(numbers, pair, dtype="float32"):
    """A tensor, or the pair of real and imaginary part."""
    if pair:
        return tuple(
            tensors(part, False, dtype)
            for part in (np.real(numbers), np.imag(numbers))
        )
    wide = "float64" if dtype == "float64" else "float32"
    return keras.ops.cast(
        keras.ops.convert_to_tensor(numbers.astype(wide)), dtype
    )
