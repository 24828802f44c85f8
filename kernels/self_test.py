"""The self-test of a kernel: outputs and gradients of tiny cases."""

import keras
import numpy as np

from keras_linrec.kernels.operations import OPERATIONS

# How far a compiled kernel may be off, by platform. `checking` of each backend
# computes the test's products at the highest precision of the platform: float32
# on CPUs and GPUs, six products of bfloat16 parts on a TPU, whose elementary
# functions also have fewer digits.
_COMPILED = {"cpu": 1e-5, "cuda": 1e-5, "tpu": 1e-4}
# How far a portable kernel may be off. It consists of the framework's own
# operations. Its products may round to 16 bits where `checking` cannot forbid
# it: these cases are off by up to 7e-3 with operands rounded to bfloat16, and
# by 1e-3 with TF32. A wrong kernel is off by more than 0.1.
_PORTABLE = 3e-2


def tolerance(name, platform):
    """The largest error of the kernel `name` that counts as rounding."""
    if name != "native":
        return _PORTABLE
    return _COMPILED.get(platform, min(_COMPILED.values()))


def relative_error(kernel, vjp, on_cpu=True):
    """The largest error of outputs and gradients, relative to their maximum.

    Args:
        kernel: a `Kernel` of the registry.
        vjp: `vjp(function, tensors, cotangents)` of the current backend, which
            returns the outputs and the gradients of a function of a list.
        on_cpu: whether to take the cases that only CPUs run. Defaults to
            `True`.
    """
    cases = []
    for operation in OPERATIONS.values():
        if getattr(kernel, operation.function) is None:
            continue
        cases += operation.self_tests
        if on_cpu:
            cases += operation.self_tests_on_cpu
    errors = [_error(vjp, *case(kernel)) for case in cases]
    # A NaN anywhere must not pass as a small error.
    return max(errors, key=lambda error: np.inf if error != error else error)


def error_at(sizes, operation, kernel, vjp):
    """The error of an operation's first case at other sizes.

    A kernel without a function for it runs what the operation has instead.

    Args:
        sizes: tuple of integers, what the case takes.
        operation: `Operation`.
        kernel, vjp: see `relative_error`.
    """
    if getattr(kernel, operation.function) is None:
        instead = operation.instead or operation.plain
        kernel = kernel._replace(**{operation.function: instead(kernel)})
    return _error(vjp, *operation.self_tests[0](kernel, sizes))


def _error(vjp, function, arrays, cotangents, expected):
    got = vjp(
        function,
        [keras.ops.convert_to_tensor(a) for a in arrays],
        [keras.ops.convert_to_tensor(c) for c in cotangents],
    )
    error = 0.0
    for one, other in zip(got, expected, strict=True):
        one = keras.ops.convert_to_numpy(one)
        difference = np.abs(one - other).max() / np.abs(other).max()
        error = max(error, difference) if difference == difference else np.nan
    return error
