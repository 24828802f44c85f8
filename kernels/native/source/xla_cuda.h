// Shared by the adapters that XLA calls: queueing the kernels of the CUDA core
// on the stream of a program.
#pragma once
#include <string>
#include <vector>

#include "cuda_core.h"
#include "xla_calls.h"

namespace keras_linrec {

typedef int (*CudaCore)(int, const int64_t*, const void* const*, void* const*,
                        void*, void*);
typedef int64_t (*Scratch)(int, const int64_t*);

// What a call of the CUDA core takes besides its arrays.
struct Queue {
  void* scratch;
  void* stream;
};

inline ffi::Error queue(CudaCore core, int flags, const int64_t* sizes,
                        const std::vector<const void*>& from,
                        const std::vector<void*>& to, const Queue& where) {
  if (!where.scratch)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      "keras_linrec: out of the GPU's memory");
  const int status = core(flags, sizes, from.data(), to.data(), where.scratch,
                          where.stream);
  if (status == kKerasLinrecDone) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("keras_linrec: ") +
                              keras_linrec_cuda_message());
}

// The memory and the stream of a program on a GPU. Its next kernels may reuse
// the memory, since they run after ours.
struct OnGpu {
  void* stream;
  ffi::ScratchAllocator& memory;

  Queue operator()(int64_t bytes) {
    return {memory.Allocate(bytes, alignof(double)).value_or(nullptr), stream};
  }
};

// For the tests, in which the driver's GPU is the CPU.
struct OnCpu {
  std::vector<double> memory;

  Queue operator()(int64_t bytes) {
    memory.resize(bytes / sizeof(double) + 1);
    return {memory.data(), nullptr};
  }
};

// The scratch memory of a function that needs none.
inline int64_t no_scratch(int, const int64_t*) { return sizeof(double); }

}  // namespace keras_linrec
