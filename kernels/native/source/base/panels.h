// Matrices whose columns are stored in panels, as the micro-kernel needs them
// (product_kernels.h), and their products.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/arrays.h"

namespace keras_linrec {

// Rows of a right factor that a product processes at once: 64 KiB with 32
// columns in float32.
constexpr int64_t inner_at_once = 512;

// A view of a matrix whose number (i, j) is
//
//   numbers[j / panel * stride + i * row + j % panel].
//
// In row-major order panels are side by side: `stride` is their width.
template <class Real>
struct Matrix {
  Real* numbers;
  int64_t rows, columns;
  int64_t row, stride;

  Real* at(int64_t panel, int64_t i = 0) const {
    return numbers + panel * stride + i * row;
  }
  Matrix rows_from(int64_t first, int64_t count) const {
    return {at(0, first), count, columns, row, stride};
  }
  Matrix panels_from(int64_t first, int64_t columns) const {
    return {at(first), rows, columns, row, stride};
  }
};

template <class Real>
Matrix<Real> row_major(Real* numbers, int64_t rows, int64_t columns) {
  return {numbers, rows, columns, columns,
          kernels<std::remove_const_t<Real>>().panel};
}

// A matrix with memory of its own: panel by panel, row by row, padded with
// columns of zeros.
template <class Real>
struct Panels {
  int64_t rows = 0, columns = 0, panel = 0, panels = 0;
  Aligned<Real> numbers;

  Panels() = default;
  Panels(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        panel(kernels<Real>().panel),
        panels((columns + panel - 1) / panel),
        numbers(rows * panels * panel) {}

  int64_t stride() const { return rows * panel; }
  Real* at(int64_t p, int64_t i = 0) {
    return numbers.data() + p * stride() + i * panel;
  }
  const Real* at(int64_t p, int64_t i = 0) const {
    return numbers.data() + p * stride() + i * panel;
  }
  Matrix<Real> all() { return {at(0), rows, columns, panel, stride()}; }
  Matrix<const Real> all() const {
    return {at(0), rows, columns, panel, stride()};
  }
  Matrix<Real> rows_from(int64_t first, int64_t count) {
    return all().rows_from(first, count);
  }
  Matrix<const Real> rows_from(int64_t first, int64_t count) const {
    return all().rows_from(first, count);
  }
  // Calls use(panel, first column, count) for each panel.
  template <class Use>
  void for_each_panel(Use use) const {
    for (int64_t p = 0; p < panels; p++)
      use(p, p * panel, std::min(panel, columns - p * panel));
  }
};

// The products of blocks that are summed in `Real` before the sum settles: over
// 2^20 steps, a float32 sum would lose up to four digits.
constexpr int64_t products_a_sum = 32;

// The float64 sum of such sums.
class Settled {
 public:
  // Takes the memory for `count` numbers, so that take() does not.
  void reserve(size_t count) { numbers_.resize(count); }
  // Moves numbers here, and leaves zeros.
  template <class Numbers>
  void take(Numbers& from) {
    if (from.empty()) return;
    numbers_.resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
      numbers_[i] += std::exchange(from[i], 0);
  }
  void take(Settled& from) {
    if (numbers_.empty()) return std::swap(numbers_, from.numbers_);
    take(from.numbers_);
    from.numbers_.clear();
  }
  template <class Numbers>
  void give(Numbers& to) const {
    for (size_t i = 0; i < to.size(); i++)
      to[i] = static_cast<typename Numbers::value_type>(numbers_[i]);
  }

 private:
  Aligned<double> numbers_;
};

// Calls use(outer, inner, k) for the parts of a product's sum: whole panels of
// `a`, and then what is left, from column k on. A row in one piece needs no
// such cut.
template <class A, class Use>
void for_each_sum(const Matrix<A>& a, int64_t panel, Use use) {
  int64_t k = 0;
  do {
    const int64_t count = std::min(inner_at_once, a.columns - k);
    const int64_t whole = a.stride == panel ? 0 : count / panel;
    const int64_t outer = whole ? whole : 1, inner = whole ? panel : count;
    use(outer, inner, k);
    k += outer * inner;
  } while (k < a.columns);
}

// c = a b, or c += a b, for the panels that b has.
template <class A, class B, class Real>
void multiply(const Matrix<A>& a, const Matrix<B>& b, const Matrix<Real>& c,
              bool add = false) {
  const int64_t panel = kernels<Real>().panel, few = a.rows % 4;
  const int64_t panels = (b.columns + panel - 1) / panel;
  Product<Real> product{};
  product.a_row = a.row;
  product.a_outer = a.stride;
  product.a_inner = 1;
  product.b_row = b.row;
  product.c_row = c.row;
  product.b_panel = b.stride;
  product.c_panel = c.stride;
  const auto run = [&](void (*kernel)(const Product<Real>&), int64_t row,
                       int64_t rows, int64_t p, int64_t count) {
    product.rows = rows;
    product.panels = count;
    product.c = c.at(p, row);
    for_each_sum(a, panel, [&](int64_t outer, int64_t inner, int64_t k) {
      product.outer = outer;
      product.inner = inner;
      product.a = a.at(k / panel, row);
      product.b = b.at(p, k);
      product.add = add || k > 0;
      kernel(product);
    });
  };
  if (a.rows > few)
    for (int64_t p = 0; p < panels; p++)
      run(kernels<Real>().product, 0, a.rows - few, p, 1);
  if (few)
    run(kernels<Real>().product_of_few_rows, a.rows - few, few, 0, panels);
}

// What a product is added to: factor * base, or base + factor * base, with a
// factor for each row of a matrix laid out as the product.
template <class Real>
struct Decayed {
  const Real* factors = nullptr;
  const Real* base = nullptr;
  bool whole = false;
};

// c = a^T b, or c += a^T b, for the panels that b has; with `decayed`, of whose
// rows `a` has at most `inner_at_once`, c = that + a^T b.
template <class A, class B, class Real>
void multiply_transposed(const Matrix<A>& a, const Matrix<B>& b,
                         const Matrix<Real>& c, bool add = false,
                         const Decayed<Real>& decayed = {}) {
  const int64_t panel = kernels<Real>().panel;
  const auto run = kernels<Real>().product;
  // Contiguous columns of `a`.
  const int64_t columns = a.stride == panel ? a.columns : panel;
  Product<Real> product{};
  product.outer = 1;
  product.a_row = 1;
  product.a_inner = a.row;
  product.b_row = b.row;
  product.c_row = c.row;
  product.whole = decayed.whole;
  for (int64_t p = 0; p * panel < b.columns; p++) {
    int64_t k = 0;
    // Once too if `a` has no rows.
    do {
      product.inner = std::min(inner_at_once, a.rows - k);
      product.b = b.at(p, k);
      product.add = add || k > 0;
      for (int64_t i = 0; i < a.columns; i += columns) {
        product.rows = std::min(columns, a.columns - i);
        product.a = a.at(i / panel, k);
        product.c = c.at(p, i);
        if (decayed.factors) {
          product.factors = decayed.factors + i;
          product.base = decayed.base + (product.c - c.numbers);
        }
        run(product);
      }
      k += inner_at_once;
    } while (k < a.rows);
  }
}

}  // namespace keras_linrec
