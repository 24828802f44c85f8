"""Skips tests of native code on machines that cannot build it."""

import keras
import pytest

from keras_linrec import kernels
from keras_linrec.kernels.native import build


def require_native():
    """The backend's native module; without one, the test is skipped.

    A call at the top of a file skips the file.
    """
    native = kernels.available()["native"]
    if not native:
        pytest.skip(
            f"no native kernel: {native.reason}", allow_module_level=True
        )
    return kernels.backends.current().compiled()


def require_jit_compiler():
    """Skip a test of PyTorch's compiler if it has no C++ compiler."""
    command = build.cxx()
    if keras.backend.backend() == "torch" and not build.version_of(command):
        pytest.skip(f"{command[0]}, which torch.compile needs, does not run")
