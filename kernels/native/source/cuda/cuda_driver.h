// CUDA's driver library, loaded at run time: neither its headers nor a CUDA
// toolkit is needed to compile or to run this, only the driver of the GPU.
#pragma once
#include <cstddef>
#include <cstdint>

namespace keras_linrec {
namespace cuda {

// A call that failed, with its message for `keras_linrec_cuda_message`.
class Failure {};

// The device of an array, made current for as long as this lives. Frameworks
// share a device's primary context, which is also used here.
class Device {
 public:
  explicit Device(const void* array);
  ~Device();
  Device(const Device&) = delete;

  // The most bytes of shared memory that a block may take.
  int64_t shared_memory() const;
  int64_t processors() const;
  // Whether it computes float64 at a good part of float32's speed, as GPUs of
  // data centres do. Others have a 32nd or a 64th.
  bool has_fast_float64() const;

  // Neither waits for the GPU nor allocates memory.
  void clear(void* numbers, int64_t count, void* stream) const;
  // `arguments` is what the kernel takes, by value.
  void launch(const char* kernel, const void* arguments, int64_t blocks,
              int threads, int64_t shared_bytes, void* stream) const;

 private:
  int number_;
};

}  // namespace cuda
}  // namespace keras_linrec
