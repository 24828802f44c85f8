// The calls of operations on tridiagonal matrices: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Right factors have `size` rows of so many numbers each; all are float64.
constexpr int64_t band_columns = 64;

// right = M^-1 right, by the elimination of M: its forward factors (one for
// each row but the first), the inverses of its pivots, and its superdiagonal.
// The rows of `right` before `first` are zero.
struct BandSolve {
  int64_t size, first;
  const double* factors;
  const double* inverses;
  const double* above;
  double* right;
};

// to = M from; row n of M is left[n], middle[n], right[n].
struct BandProduct {
  int64_t size;
  const double* left;
  const double* middle;
  const double* right;
  const double* from;
  double* to;
};

// Adds the bands of a b^T to those of M, three numbers in each row.
struct BandSums {
  int64_t size;
  const double* a;
  const double* b;
  double* left;
  double* middle;
  double* right;
};

}  // namespace keras_linrec
