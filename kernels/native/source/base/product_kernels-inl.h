// Products of panels.
#pragma once
#include "base/product_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// `rows` by two vectors of c in registers. With a row stride that the compiler
// knows, it need not compute addresses.
template <class Real, int rows, int known_row>
void micro_kernel(const Product<Real>& p, int64_t first) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  const int64_t a_row = known_row ? known_row : p.a_row;
  Real* c = p.c + first * p.c_row;
  // What `c` holds is added last: the longer sum loses less by rounding, and
  // `c` may arrive from a distant cache in the meantime.
  Vector sum[rows][2] = {};
  if (p.add)
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < 2; j++)
        __builtin_prefetch(c + i * p.c_row + j * width, 1);
  const Real* outer = p.a + first * a_row;
  const Real* b = p.b;
  for (int64_t o = 0; o < p.outer; o++, outer += p.a_outer) {
    const Real* a = outer;
    for (int64_t k = 0; k < p.inner; k++, a += p.a_inner, b += p.b_row) {
      const Vector left = *reinterpret_cast<const InMemory*>(b);
      const Vector right = *reinterpret_cast<const InMemory*>(b + width);
      UNROLL for (int i = 0; i < rows; i++) {
        const Real weight = a[i * a_row];
        sum[i][0] += weight * left;
        sum[i][1] += weight * right;
      }
    }
  }
  if (p.factors) {
    const Real* base = p.base + first * p.c_row;
    UNROLL for (int i = 0; i < rows; i++)
      UNROLL for (int j = 0; j < 2; j++) {
        const int64_t place = i * p.c_row + j * width;
        const Vector old = *reinterpret_cast<const InMemory*>(base + place);
        const Vector changed = sum[i][j] + p.factors[first + i] * old;
        *reinterpret_cast<InMemory*>(c + place) =
            p.whole ? old + changed : changed;
      }
    return;
  }
  UNROLL for (int i = 0; i < rows; i++)
    UNROLL for (int j = 0; j < 2; j++) {
      InMemory* to = reinterpret_cast<InMemory*>(c + i * p.c_row + j * width);
      *to = p.add ? *to + sum[i][j] : sum[i][j];
    }
}

template <class Real, int known_row>
void product_of(const Product<Real>& p) {
  int64_t i = 0;
  // Two blocks of 8 rather than one of 12 and one of 4, and two of 4 rather
  // than one of 6 and single rows, whose few sums would not hide the latency.
  constexpr int most = MICRO_KERNEL_ROWS, pair = most == 12 ? 16 : 8;
  for (; i + most <= p.rows && i + pair != p.rows; i += most)
    micro_kernel<Real, most, known_row>(p, i);
  if (most > 8)
    for (; i + 8 <= p.rows; i += 8) micro_kernel<Real, 8, known_row>(p, i);
  for (; i + 4 <= p.rows; i += 4) micro_kernel<Real, 4, known_row>(p, i);
  for (; i < p.rows; i++) micro_kernel<Real, 1, known_row>(p, i);
}

// Few rows by several panels at once: one row by one panel has two sums, whose
// additions would wait for each other. Numbers are added in the same order as
// by `micro_kernel`, so that a row's result does not depend on how many rows
// there are.
template <class Real, int rows, int panels>
void few_rows(const Product<Real>& p, int64_t panel) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  Vector sum[rows][2 * panels] = {};
  const Real* outer = p.a;
  const Real* b = p.b + panel * p.b_panel;
  for (int64_t o = 0; o < p.outer; o++, outer += p.a_outer) {
    const Real* a = outer;
    for (int64_t k = 0; k < p.inner; k++, a += p.a_inner, b += p.b_row)
      UNROLL for (int j = 0; j < 2 * panels; j++) {
        const Vector right = *reinterpret_cast<const InMemory*>(
            b + j / 2 * p.b_panel + j % 2 * width);
        UNROLL for (int i = 0; i < rows; i++)
          sum[i][j] += a[i * p.a_row] * right;
      }
  }
  UNROLL for (int i = 0; i < rows; i++)
    UNROLL for (int j = 0; j < 2 * panels; j++) {
      InMemory* to = reinterpret_cast<InMemory*>(
          p.c + i * p.c_row + (panel + j / 2) * p.c_panel +
          j % 2 * width);
      *to = p.add ? *to + sum[i][j] : sum[i][j];
    }
}

template <class Real, int rows, int at_once>
void rows_by_panels(const Product<Real>& p) {
  int64_t panel = 0;
  for (; panel + at_once <= p.panels; panel += at_once)
    few_rows<Real, rows, at_once>(p, panel);
  for (; panel < p.panels; panel++) few_rows<Real, rows, 1>(p, panel);
}

// With one to three rows.
template <class Real>
void product_of_few_rows(const Product<Real>& p) {
  if (p.rows == 3) return rows_by_panels<Real, 3, 2>(p);
  if (p.rows == 2) return rows_by_panels<Real, 2, 2>(p);
  rows_by_panels<Real, 1, 4>(p);
}

template <class Real>
void product(const Product<Real>& p) {
  if (p.a_row == 1) return product_of<Real, 1>(p);
  if (p.a_row == 2 * Types<Real>::width)
    return product_of<Real, 2 * Types<Real>::width>(p);
  product_of<Real, 0>(p);
}

template <class Real>
void dot_rows(const DotRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t row = 0; row < s.rows; row++) {
    P sum{};
    for (int64_t q = 0; q < s.panels; q++) {
      const Real* a = s.a + q * s.panel_stride + row * panel;
      sum = sum + P::load(a) * P::load(s.b + q * panel);
    }
    const auto both = sum.part[0] + sum.part[1];
    Real total = 0;
    for (int i = 0; i < P::width; i++) total += both[i];
    s.to[row * s.to_row] = s.add ? s.to[row * s.to_row] + total : total;
  }
}

template <class Real>
void add_scaled(const AddScaled<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t row = 0; row < s.rows; row++) {
    const P base = P::load(s.base + row * panel);
    const P from = P::load(s.from + row * panel);
    (base + s.factors[row] * from).store(s.to + row * panel);
  }
}

}  // namespace
}  // namespace keras_linrec
