"""For tests of native code, which not every machine can build."""

import keras
import pytest

from keras_linrec import kernels
from keras_linrec.kernels.native import build


def require_native():
    """The backend's native module; where there is none, a test is skipped.

    Called at the top of a file, it skips the file.
    """
    native = kernels.available()["native"]
    if not native:
        pytest.skip(
            f"no native kernel: {native.reason}", allow_module_level=True
        )
    return kernels.backends.current().compiled()


def require_jit_compiler():
    """Skips a test of PyTorch's compiler, which needs a C++ one itself."""
    command = build.cxx()
    if keras.backend.backend() == "torch" and not build.version_of(command):
        pytest.skip(f"{command[0]}, which torch.compile needs, does not run")
