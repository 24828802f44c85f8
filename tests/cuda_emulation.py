"""The CUDA kernels as the tests have them: emulated on the CPU, or by nvcc."""

import ctypes
import shutil
import subprocess

import pytest

from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.torch import cuda

SOURCE = recipes.SOURCE / "cuda.cu"


@pytest.fixture(scope="module")
def emulation(tmp_path_factory):
    """The library, compiled to run on the CPU."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    path = tmp_path_factory.mktemp("cuda") / "emulation.so"
    command = [compiler, "-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC"]
    compile_source([*command, "-Wall", "-Werror"], path)
    library = cuda.Library(path)
    library.emulate = ctypes.CDLL(str(path)).keras_linrec_cuda_emulate
    return library


def compiled_by_nvcc(path):
    """The library, compiled for GPUs."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc here")
    compile_source([nvcc, *cuda.nvcc_flags()], path)
    return cuda.Library(path)


def compile_source(command, path):
    subprocess.run([*command, str(SOURCE), "-o", str(path)], check=True)
