// The arrays of a call.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "base/core.h"
#include "base/kernels.h"

namespace keras_linrec {

template <class Real>
const Kernels<Real>& kernels();
template <>
inline const Kernels<float>& kernels<float>() {
  return instruction_set().single_precision;
}
template <>
inline const Kernels<double>& kernels<double>() {
  return instruction_set().double_precision;
}

// Memory from the beginning of a line of the cache on. A vector that lies in
// two lines is read twice: with the 16 bytes that `new` sees to, the loops of
// an impulse response and its gradient (lane_kernels.h) take 1.25 times as
// long.
template <class Number>
struct LineAllocator {
  typedef Number value_type;
  static constexpr std::align_val_t line{64};
  LineAllocator() = default;
  template <class Other>
  LineAllocator(const LineAllocator<Other>&) {}
  Number* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(Number)) throw std::bad_alloc();
    return static_cast<Number*>(::operator new(count * sizeof(Number), line));
  }
  void deallocate(Number* numbers, size_t) {
    ::operator delete(numbers, line);
  }
  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
};

template <class Number>
using Aligned = std::vector<Number, LineAllocator<Number>>;

// The one or two arrays of a quantity.
template <class Pointer>
struct Parts {
  Pointer part[2] = {nullptr, nullptr};
  Parts at(int64_t element) const {
    Parts result;
    for (int p = 0; p < 2; p++)
      if (part[p]) result.part[p] = part[p] + element;
    return result;
  }
  Pointer operator[](int p) const { return part[p]; }
};

template <class Real>
using In = Parts<const Real*>;
template <class Real>
using Out = Parts<Real*>;

// Takes the quantities of a call, in order, from its list of arrays.
template <class Real, class Void>
class Reader {
 public:
  Reader(Void* const* arrays, bool complex)
      : next_(arrays), complex_(complex) {}
  template <class Pointer>
  Parts<Pointer> take(bool complex) {
    Parts<Pointer> parts;
    for (int p = 0; p <= complex; p++)
      parts.part[p] = static_cast<Pointer>(*next_++);
    return parts;
  }
  In<Real> in() { return take<const Real*>(complex_); }
  In<Real> real_in() { return take<const Real*>(false); }
  Out<Real> out() { return take<Real*>(complex_); }
  Out<Real> real_out() { return take<Real*>(false); }

 private:
  Void* const* next_;
  bool complex_;
};

template <class From, class To>
void assign(const Parts<From>& from, To (&to)[2]) {
  to[0] = from[0];
  to[1] = from[1];
}

// Whether all of some numbers are zero.
template <class Real>
bool all_zero(const Real* numbers, int64_t count) {
  // As many at once as a compiler turns into a few vectors.
  constexpr int64_t at_once = 64;
  for (int64_t first = 0; first < count; first += at_once) {
    const int64_t last = std::min(count, first + at_once);
    bool any = false;
    for (int64_t i = first; i < last; i++) any |= numbers[i] != Real{0};
    if (any) return false;
  }
  return true;
}

// Runs a call in its number type and turns exceptions into a status.
template <class Call>
int status_of(int flags, Call call) {
  try {
    return flags & kKerasLinrecFloat64 ? call(double{}) : call(float{});
  } catch (const std::bad_alloc&) {
    return kKerasLinrecOutOfMemory;
  } catch (const std::exception&) {
    // No exception may pass through a C interface.
    return kKerasLinrecFailed;
  }
}

}  // namespace keras_linrec
