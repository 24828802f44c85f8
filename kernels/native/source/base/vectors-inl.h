// The vectors of an instruction set. This and the other files named `*-inl.h`
// are included by kernels.cpp only.
#pragma once
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define MICRO_KERNEL_ROWS 12
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define MICRO_KERNEL_ROWS 6
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define MICRO_KERNEL_ROWS 12
#else
#define VECTOR_BYTES 16
#define MICRO_KERNEL_ROWS 6
#endif

#define INLINE inline __attribute__((always_inline))

// Before a loop over an array that is to live in registers, which it can only
// if every index is a constant. Clang would leave it in memory: a product of
// panels took twice as long.
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace keras_linrec {
namespace {

// `Vector` fills a register; `Narrow` fills one when widened to float64. The
// types `...InMemory` need no alignment.
typedef double Doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef Doubles DoublesInMemory __attribute__((aligned(8), may_alias));

INLINE Doubles load_doubles(const double* from) {
  return *reinterpret_cast<const DoublesInMemory*>(from);
}
INLINE void store_doubles(double* to, Doubles value) {
  *reinterpret_cast<DoublesInMemory*>(to) = value;
}

template <class Real>
struct Types;
template <>
struct Types<float> {
  static constexpr int width = VECTOR_BYTES / 4;
  typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef float Narrow __attribute__((vector_size(VECTOR_BYTES / 2)));
  typedef Vector VectorInMemory __attribute__((aligned(4), may_alias));
  typedef int32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int fraction_bits = 23, exponent_bias = 127;
  // Terms of the series of exp(r) - 1 for |r| < 0.35, and the least argument,
  // for which exp is still a normal number.
  static constexpr int exp_terms = 7;
  static constexpr float least_exponent = -80;
  typedef Narrow NarrowInMemory __attribute__((aligned(4), may_alias));
};
template <>
struct Types<double> {
  static constexpr int width = VECTOR_BYTES / 8;
  typedef Doubles Vector;
  typedef Doubles Narrow;
  typedef DoublesInMemory VectorInMemory;
  typedef DoublesInMemory NarrowInMemory;
  typedef int64_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int fraction_bits = 52, exponent_bias = 1023;
  static constexpr int exp_terms = 13;
  static constexpr double least_exponent = -700;
};

// A number that the compiler knows.
template <int number>
struct Constant {
  static constexpr int value = number;
};

// Two vectors: a row of a panel.
template <class Real>
struct Pair {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  static constexpr int width = Types<Real>::width;
  Vector part[2];
  static INLINE Pair load(const Real* from) {
    return {{*reinterpret_cast<const InMemory*>(from),
             *reinterpret_cast<const InMemory*>(from + width)}};
  }
  INLINE void store(Real* to) const {
    *reinterpret_cast<InMemory*>(to) = part[0];
    *reinterpret_cast<InMemory*>(to + width) = part[1];
  }
};

template <class Real>
INLINE Pair<Real> operator+(const Pair<Real>& a, const Pair<Real>& b) {
  return {{a.part[0] + b.part[0], a.part[1] + b.part[1]}};
}
template <class Real>
INLINE Pair<Real> operator-(const Pair<Real>& a, const Pair<Real>& b) {
  return {{a.part[0] - b.part[0], a.part[1] - b.part[1]}};
}
template <class Real>
INLINE Pair<Real> operator*(const Pair<Real>& a, const Pair<Real>& b) {
  return {{a.part[0] * b.part[0], a.part[1] * b.part[1]}};
}
template <class Real>
INLINE Pair<Real> operator*(Real a, const Pair<Real>& b) {
  return {{a * b.part[0], a * b.part[1]}};
}

}  // namespace
}  // namespace keras_linrec
