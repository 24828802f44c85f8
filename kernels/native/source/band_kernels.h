// What operations on tridiagonal matrices are told: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Tridiagonal matrices, in float64, by `size` rows of so many numbers each.
constexpr int64_t band_columns = 64;

// right = M^-1 right, by the elimination of M: its forward factors (one for
// each row but the first), its pivots' inverses, and its superdiagonal. Rows
// before `first` are zero.
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

// What (a b^T) adds to the bands of M: the same three numbers of each row.
struct BandSums {
  int64_t size;
  const double* a;
  const double* b;
  double* left;
  double* middle;
  double* right;
};

}  // namespace keras_linrec
