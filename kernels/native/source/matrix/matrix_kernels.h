// The calls of moves and sums of rows of panels: see kernels.h and panels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Rows of `columns` numbers, `row` apart, from or to panels, `panel` apart,
// whose last has zeros behind them. Those that move next are `ahead` rows in
// memory from these, too far apart for the processor to expect them; 0: none.
template <class Real>
struct MoveRows {
  int64_t rows, columns, row, panel;
  const Real* from;
  Real* to;
  int64_t ahead;
};

// to (+)= factor * from, with a factor for each row of all panels.
template <class Real>
struct ScaleRows {
  int64_t rows, panels, panel;
  const Real* factors;
  const Real* from;
  Real* to;
  bool add;
};

// to[i] = the product of rows i of a and b.
template <class Real>
struct DotEach {
  int64_t rows, panels, a_panel, b_panel;
  const Real* a;
  const Real* b;
  double* to;
};

// x_i += sum_{j<i} weight(i, j) x_j, row after row, with weight(i, j) =
// weights[i * of_row + j * of_other]. Rows are `row` apart, panels `panel`.
template <class Real>
struct SolveRows {
  int64_t rows, panels, row, panel, of_row, of_other;
  const Real* weights;
  Real* x;
};

// Row j of `to` is column j of `from`, which has so many rows and columns.
template <class Real>
struct Transpose {
  int64_t rows, columns, from_panel, to_panel;
  const Real* from;
  Real* to;
};

// What follows is of one row of panels for each pointer, of matrices of equally
// many rows, with a decay for each column. Without a `decay` it is one.

// between *= decay; and the cotangents of a pair's key and query products:
//
//   d_query += output between first_key,
//   d_key += found between first_key,
//   d_first_key += between (output query + found key).
//
// Without a `query` there is no output.
template <class Real>
struct PairOfRows {
  int64_t panels, panel;
  const Real* decay;
  Real* between;
  const Real* first_key;
  const Real* key;
  const Real* query;
  Real output, found;
  Real* d_query;
  Real* d_key;
  Real* d_first_key;
};

// sum = decay sum + first_key (output query + found key).
template <class Real>
struct CarriedSum {
  int64_t panels, panel;
  const Real* decay;
  Real* sum;
  const Real* first_key;
  const Real* key;
  const Real* query;
  Real output, found;
};

// between *= decay; total += between sum.
template <class Real>
struct DecayedSum {
  int64_t panels, panel;
  const Real* decay;
  Real* between;
  const Real* sum;
  Real* total;
};

}  // namespace keras_linrec
