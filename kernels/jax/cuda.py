"""The kernels of JAX on NVIDIA GPUs: the CUDA core's, and Pallas' for the rest.

Importing this module loads the CUDA core, or raises where it does not run.
"""

import jax

from keras_linrec.kernels.jax import core_calls
from keras_linrec.kernels.jax.native_scans import scan as scan
from keras_linrec.kernels.jax.pallas import nonlinear_scan as nonlinear_scan
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import cuda

FUNCTIONS = ("keras_linrec_scan", "keras_linrec_scan_backward")

cuda.core()


def handler(function, suffix=""):
    """The XLA FFI handler of a function of the CUDA core."""
    name = cuda.name_of(function, f"{suffix}_xla")
    return jax.ffi.pycapsule(getattr(build.load("jax"), name))


for _function in FUNCTIONS:
    jax.ffi.register_ffi_target(_function, handler(_function), platform="CUDA")
core_calls.on_cuda.update(FUNCTIONS)
