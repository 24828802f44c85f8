"""The stand-in for CUDA's driver library, whose GPU is the CPU.

With it the CUDA core runs to the end on arrays of the CPU: the launcher, and
the kernels as a C++ compiler compiles them.
"""

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from support.needs_native import require_native

from keras_linrec.kernels.native import cuda
from keras_linrec.kernels.native import recipes

SOURCE = Path(__file__).parent / "cuda_stand_in.cpp"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """`stand_in(shared_memory, processors, backwards, ratio)` sets up the GPU.

    `ratio` is how many times as fast float32 is as float64.
    """
    require_native()
    path = _compiled(tmp_path_factory.getbasetemp())
    library = ctypes.CDLL(path)

    def set_up(shared_memory=2**16, processors=4, backwards=0, ratio=64):
        numbers = shared_memory, processors, backwards, ratio
        library.stand_in_set(*map(ctypes.c_int64, numbers))

    _open(path, b"the kernels of the stand-in")
    yield set_up
    set_up()
    _open(None, None)


def _open(driver, kernels):
    cuda.driver, cuda.kernels = driver, kernels
    cuda.core.cache_clear()
    cuda.is_here.cache_clear()


@cache
def _compiled(folder):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    path = folder / "cuda_stand_in.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wall"]
    subprocess.run(
        [compiler, *flags, "-Werror", f"-I{recipes.SOURCE}", str(SOURCE)]
        + ["-o", str(path)],
        check=True,
    )
    return str(path)
