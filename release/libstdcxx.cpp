// Code that GCC 11 and later emit a call of, and older C++ libraries lack.
// TensorFlow's adapter is linked to the C++ library that TensorFlow runs on.
#include <new>

namespace std {

void __throw_bad_alloc() __attribute__((noreturn));

__attribute__((noreturn, visibility("hidden"))) void
__throw_bad_array_new_length() {
  __throw_bad_alloc();
}

}  // namespace std
