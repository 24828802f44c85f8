// A stand-in for CUDA's driver library: its GPU is the CPU. It has the functions
// that kernels/native/source/cuda/cuda_driver.cpp calls, and runs the kernels of
// cuda_passes.h, each thread of a block after the other, several blocks at the
// same time.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cuda_passes.h"

namespace {

using namespace keras_linrec::cuda;

// Besides the properties of a GPU, the order of its threads: see `Block`.
struct Properties {
  int64_t shared_memory = 1 << 16, processors = 4, backwards = 0;
  // How many times as fast float32 is as float64.
  int64_t ratio = 64;
} gpu;

struct Kernel {
  const char* name;
  size_t bytes;
  int most_threads;
  void (*run)(const void* pass, const Block& block);
};

template <class Pass>
void run(const void* pass, const Block& block) {
  (*static_cast<const Pass*>(pass))(block);
}

const Kernel kernels[] = {
#define KERAS_LINREC_KERNEL(name, ...) \
  {#name, sizeof(__VA_ARGS__), __VA_ARGS__::most_threads, run<__VA_ARGS__>},
    KERAS_LINREC_KERNELS(KERAS_LINREC_KERNEL)
#undef KERAS_LINREC_KERNEL
};

void run_blocks(const Kernel& kernel, const void* pass, unsigned blocks,
                unsigned bytes) {
  std::atomic<unsigned> next{0};
  const auto work = [&] {
    // Doubles have the alignment of shared memory; NaN shows reads of memory
    // that was never written.
    std::vector<double> memory(bytes / sizeof(double) + 1);
    for (unsigned index; (index = next++) < blocks;) {
      UnderWay under_way(1);
      std::memset(memory.data(), 0xff, memory.size() * sizeof(double));
      kernel.run(pass, Block{index,
                             reinterpret_cast<unsigned char*>(memory.data()),
                             gpu.backwards != 0, &under_way});
    }
  };
  std::vector<std::thread> threads;
  const int64_t most = gpu.processors < 4 ? gpu.processors : 4;
  for (int64_t i = 1; i < most && i < blocks; i++) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
}

constexpr int kInvalidValue = 1, kNotFound = 500;
const char binary[] = "the kernels of the stand-in";

}  // namespace

extern "C" {

// Sets the properties of the GPU.
void stand_in_set(int64_t shared_memory, int64_t processors,
                  int64_t backwards, int64_t ratio) {
  gpu = {shared_memory, processors, backwards, ratio};
}

int cuInit(unsigned) { return 0; }

int cuGetErrorString(int error, const char** text) {
  *text = error == kNotFound ? "named symbol not found" : "invalid argument";
  return 0;
}

int cuPointerGetAttribute(void* value, int attribute, unsigned long long) {
  if (attribute != 9) return kInvalidValue;
  *static_cast<int*>(value) = 0;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16:
      *value = static_cast<int>(gpu.processors);
      return 0;
    case 87:
      *value = static_cast<int>(gpu.ratio);
      return 0;
    case 97:
      *value = static_cast<int>(gpu.shared_memory);
      return 0;
  }
  return kInvalidValue;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &gpu;
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  return context == &gpu ? 0 : kInvalidValue;
}

int cuCtxPopCurrent_v2(void**) { return 0; }

int cuModuleLoadData(void** module, const void* data) {
  if (std::memcmp(data, binary, sizeof(binary) - 1)) return kInvalidValue;
  *module = &gpu;
  return 0;
}

int cuModuleGetFunction(void** function, void*, const char* name) {
  for (const Kernel& kernel : kernels)
    if (std::string(kernel.name) == name) {
      *function = const_cast<Kernel*>(&kernel);
      return 0;
    }
  return kNotFound;
}

int cuFuncSetAttribute(void*, int attribute, int bytes) {
  return attribute == 8 && bytes <= gpu.shared_memory ? 0 : kInvalidValue;
}

int cuMemsetD32Async(unsigned long long address, unsigned value, size_t count,
                     void*) {
  auto* numbers = reinterpret_cast<unsigned*>(address);
  for (size_t i = 0; i < count; i++) numbers[i] = value;
  return 0;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned,
                   unsigned threads, unsigned, unsigned, unsigned bytes, void*,
                   void** arguments, void**) {
  const Kernel& kernel = *static_cast<Kernel*>(function);
  const bool fits = blocks > 0 && threads > 0 &&
                    static_cast<int>(threads) <= kernel.most_threads &&
                    bytes <= gpu.shared_memory;
  if (!fits) return kInvalidValue;
  // As a GPU does, read the arguments at the launch.
  std::vector<double> pass(kernel.bytes / sizeof(double) + 1);
  std::memcpy(pass.data(), arguments[0], kernel.bytes);
  run_blocks(kernel, pass.data(), blocks, bytes);
  return 0;
}

}  // extern "C"
