// The kernels of the CUDA core, which nvcc compiles to one binary for all GPUs.
#include "cuda/cuda_passes.h"

namespace keras_linrec {
namespace cuda {

#define KERAS_LINREC_KERNEL(name, ...)                                     \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::most_threads)  \
      name(const __grid_constant__ __VA_ARGS__ pass) {                     \
    extern __shared__ __align__(16) unsigned char memory[];                \
    pass(Block{blockIdx.x, memory});                                       \
  }
KERAS_LINREC_KERNELS(KERAS_LINREC_KERNEL)

}  // namespace cuda
}  // namespace keras_linrec
