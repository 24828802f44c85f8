"""XLA's compilers for a TPU v5e and an H100, on a machine with neither.

They ship as wheels and compile without a device. Install them in a folder of
their own: in the environment of the tests, JAX would look for the devices.

    pip install --no-deps --target LIBS/tpu libtpu==0.0.42
    pip install --no-deps --target LIBS/cuda \\
        jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2

in the version of `jax`. For the H100, `nvcc` has to be on the PATH: its `ptxas`
assembles the kernels.
"""

import os
import shutil
import sys
from pathlib import Path

TARGETS = ("cuda", "tpu")
# What XLA has to know of an H100 SXM.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def prepare(libraries, target):
    """The device to compile for. A process compiles for one.

    Call it before JAX or Keras is imported.

    Args:
        libraries: the folder LIBS above.
        target: one of `TARGETS`.
    """
    folder = Path(libraries).resolve() / target
    if not folder.is_dir():
        raise SystemExit(f"{folder} should hold XLA's compiler: {__doc__}")
    sys.path.insert(0, str(folder))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["KERAS_BACKEND"] = "jax"
    return {"tpu": _tpu, "cuda": _h100}[target](folder)


def _tpu(folder):
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
        TPU_LIBRARY_PATH=str(folder / "libtpu" / "libtpu.so"),
    )
    return _device(platform="tpu", topology_name="v5e:2x2")


def _h100(folder):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("nvcc should be on the PATH: its ptxas is needed")
    cuda = Path(nvcc).resolve().parent.parent
    # Without a GPU to try them on, products in Triton get tile sizes that some
    # operands do not fit.
    os.environ["XLA_FLAGS"] = (
        f"--xla_gpu_cuda_data_dir={cuda} --xla_gpu_autotune_level=0 "
        "--xla_gpu_enable_triton_gemm=false "
        "--xla_gpu_force_compilation_parallelism=1"
    )
    return _device(
        platform="cuda",
        topology_name="h100",
        target_config=_H100,
        topology="1x1x1",
    )


def _device(**options):
    from jax.experimental import topologies

    return topologies.get_topology_desc(**options).devices[0]


def choose(target):
    """Make the package trace what it would run on the target."""
    from keras_linrec.kernels import backends
    from keras_linrec.kernels.jax import check_bounded
    from keras_linrec.kernels.jax import pallas

    backends.current().platform = lambda: target
    pallas._platform = lambda: target
    # A callback into Python needs the device itself.
    check_bounded._Check.__call__ = lambda check, tensor: [tensor]


def temporaries(device, target, function, arguments):
    """The bytes of the temporaries of a function, compiled for the device.

    Args:
        function: a function of arrays.
        arguments: a tree of `jax.ShapeDtypeStruct`s.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=place
        ),
        arguments,
    )
    lowered = jax.jit(function).trace(*arguments)
    compiled = lowered.lower(lowering_platforms=(target,)).compile()
    return compiled.memory_analysis().temp_size_in_bytes
