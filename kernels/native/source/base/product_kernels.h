// The calls of products of panels: see kernels.h and panels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// c[rows x panel] (+)= a[rows x (outer * inner)] b, where
// a(i, o, k) = a[i * a_row + o * a_outer + k * a_inner].
//
// With `factors`, c = factor * base + a b, with a factor for each row, where
// `base` is c or laid out as c; with `whole`, c = base + (factor * base + a b).
// This is for more than a few rows.
template <class Real>
struct Product {
  int64_t rows, outer, inner;
  const Real* a;
  int64_t a_row, a_outer, a_inner;
  const Real* b;
  int64_t b_row;
  Real* c;
  int64_t c_row;
  bool add;
  // For few rows: how many panels b and c have, and the distances between them.
  int64_t panels, b_panel, c_panel;
  const Real* factors;
  const Real* base;
  bool whole;
};

// to = base + factor * from on `rows` rows of a panel, with a factor per row.
template <class Real>
struct AddScaled {
  int64_t rows;
  const Real* factors;
  const Real* base;
  const Real* from;
  Real* to;
};

// to[row] (+)= (row of a tile, b), where b is one row of the same columns.
template <class Real>
struct DotRows {
  int64_t rows, panels, panel_stride, to_row;
  const Real* a;
  const Real* b;
  Real* to;
  bool add;
};

}  // namespace keras_linrec
