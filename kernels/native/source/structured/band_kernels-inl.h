// Tridiagonal matrices.
#pragma once
#include "structured/band_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

constexpr int64_t band_width = Types<double>::width;

INLINE Doubles band(const double* from, int64_t row, int64_t column) {
  return load_doubles(from + row * band_columns + column);
}

INLINE void keep_band(double* to, int64_t row, int64_t column, Doubles value) {
  store_doubles(to + row * band_columns + column, value);
}

void solve_bands(const BandSolve& s) {
  for (int64_t n = s.first + 1; n < s.size; n++)
    for (int64_t c = 0; c < band_columns; c += band_width)
      keep_band(s.right, n, c,
                band(s.right, n, c) -
                    s.factors[n] * band(s.right, n - 1, c));
  for (int64_t n = s.size - 1; n >= 0; n--)
    for (int64_t c = 0; c < band_columns; c += band_width) {
      Doubles value = band(s.right, n, c);
      if (n + 1 < s.size) value -= s.above[n] * band(s.right, n + 1, c);
      keep_band(s.right, n, c, s.inverses[n] * value);
    }
}

void multiply_bands(const BandProduct& s) {
  for (int64_t n = 0; n < s.size; n++)
    for (int64_t c = 0; c < band_columns; c += band_width) {
      Doubles value = s.middle[n] * band(s.from, n, c);
      if (n > 0) value += s.left[n] * band(s.from, n - 1, c);
      if (n + 1 < s.size) value += s.right[n] * band(s.from, n + 1, c);
      keep_band(s.to, n, c, value);
    }
}

INLINE double row_product(const double* a, const double* b) {
  Doubles sum = {};
  for (int64_t c = 0; c < band_columns; c += band_width)
    sum += band(a, 0, c) * band(b, 0, c);
  double total = 0.0;
  for (int64_t i = 0; i < band_width; i++) total += sum[i];
  return total;
}

void add_bands(const BandSums& s) {
  for (int64_t n = 0; n < s.size; n++) {
    const double* a = s.a + n * band_columns;
    const double* b = s.b + n * band_columns;
    s.middle[n] += row_product(a, b);
    if (n > 0) s.left[n] += row_product(a, b - band_columns);
    if (n + 1 < s.size) s.right[n] += row_product(a, b + band_columns);
  }
}

}  // namespace
}  // namespace keras_linrec
