// What Linux, macOS and Windows do differently, and processors too. The number
// of processors is in processors.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace keras_linrec {

// Whether the processor has the instructions that kernels.cpp is compiled to
// for a set of this name, and the system keeps their registers.
bool supports_avx2();
bool supports_avx512();

// From now on, forked children call `prepare` before anything else. Windows has
// no forks.
void in_forked_children(void (*prepare)());

// Binds this thread to processors, if there are any in the list and the system
// is Linux: the others do not let programs choose, or need not.
void bind_to(const std::vector<int>& processors);

// Requests large pages for a big array that is about to be written for the
// first time. The page faults of a new 64 MB array cost 25 to 100 ms with pages
// of 4 KiB, and 2 ms with pages of 2 MB. Linux alone takes such requests.
void prepare_to_write(void* array, std::size_t bytes);

// The library at a path, or of a name that the system finds, or null; and the
// address of one of its functions, or null. It is never unloaded.
void* open_library(const char* path);
void* function_in(void* library, const char* name);

// Below the smallest normal number, numbers are zero on this thread, as they
// are on those of XLA and TensorFlow. States that decay over zeros at the end
// of a row become so small: with a quarter of the steps masked, PyTorch's
// training step of RotRNN(128) at (16, 2048, 64) takes 180 ms with such numbers
// and 135 where `torch.set_flush_denormal` makes them zero.
class FlushSubnormals {
 public:
  FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  ~FlushSubnormals();

 private:
  const uint64_t before_;
};

}  // namespace keras_linrec
