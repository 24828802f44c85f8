"""Kernels in tests: each that runs here, and native code where it is built."""

import os
import subprocess
import sys

import keras
import pytest
from support import TESTS

from keras_linrec import config
from keras_linrec import kernels
from keras_linrec.kernels.native import build


def require_native():
    """The native kernel; without one, the test is skipped.

    A call at the top of a file skips the file.
    """
    require(kernels.available()["native"])
    return kernels.registry.load("native")


def require(check):
    """Skip a test if a kernel cannot run here.

    A kernel that runs but fails its self-test is a fault: a skip would hide it,
    and with it all tests of that kernel.

    Args:
        check: the kernel's `Availability`.
    """
    if not check:
        assert "self-test" not in check.reason, check.reason
        pytest.skip(f"no such kernel: {check.reason}", allow_module_level=True)


def require_jit_compiler():
    """Skip a test of PyTorch's compiler if it has no C++ compiler."""
    command = build.cxx()
    if keras.backend.backend() == "torch" and not build.version_of(command):
        pytest.skip(f"{command[0]}, which torch.compile needs, does not run")


def each_kernel(*names):
    """A fixture, for which a test runs once with each kernel set."""

    @pytest.fixture(params=names)
    def kernel(request):
        if request.param != "auto":
            require(kernels.available()[request.param])
        config.set_kernel(request.param)
        yield request.param
        config.set_kernel(None)

    return kernel


_DIGEST = """
import hashlib
from keras_linrec.kernels.native import core
print(hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest())
print(core.description())
"""


def require_same_bits(script):
    """Fail unless a script computes the same on one thread and on three.

    Args:
        script: Python, which makes a list `results` of arrays.
    """
    script += _DIGEST
    digests = set()
    for threads in ("1", "3"):
        answer = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "KERAS_LINREC_NUM_THREADS": threads},
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=300,
        )
        digest, described = answer.stdout.splitlines()[-2:]
        assert f"{threads} threads" in described, answer.stderr
        digests.add(digest)
    assert len(digests) == 1
