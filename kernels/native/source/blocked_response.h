// The impulse response in blocks of time, a feature at a time, so that what it
// needs stays in the cache. Step j S + i is reached by i steps within a block
// of S and j whole blocks:
//
//   response[j S + i] = (C Abar^(j S)) (Abar^i Bbar).
//
// All matrices are of the form Abar^k - I: close to the identity, where small
// time_deltas put them, a number would keep few digits of the difference that
// matters. They are kept transposed, the form in which most products need them.
// The backward pass computes them anew. All sums are float64: a system can grow
// by orders of magnitude before it decays, and rounding with it.
#pragma once
#include <algorithm>

#include "arrays.h"
#include "structured_state.h"

namespace keras_linrec {

// How time is cut: 2^doublings steps in each of `count` blocks.
struct Blocks {
  int64_t size = 1, count, doublings = 0;
  Blocks(int64_t time, int64_t wanted) {
    while (size < wanted && size < time) {
      size *= 2;
      doublings++;
    }
    count = (time + size - 1) / size;
  }
  // Powers of the transition that are needed; the last is that of a block.
  int64_t powers() const { return count > 1 ? doublings + 1 : doublings; }
};

// Rows of a right factor that a product takes at once: see projected_scan.cpp.
constexpr int64_t inner_at_once = 512;

// --- matrices in panels, as the products want them (kernels.h) ------------

struct Matrix {
  int64_t rows, columns, panel, panels;
  std::vector<double> numbers;
  Matrix(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        panel(kernels<double>().panel),
        panels((columns + panel - 1) / panel),
        numbers(rows * panels * panel) {}
  // A number, and those of its row that follow in its panel.
  double* at(int64_t row, int64_t column) {
    return numbers.data() + (column / panel * rows + row) * panel +
           column % panel;
  }
  const double* at(int64_t row, int64_t column) const {
    return const_cast<Matrix*>(this)->at(row, column);
  }
  // Calls use(column, count) for each panel.
  template <class Use>
  void for_each_panel(Use use) const {
    for (int64_t c = 0; c < columns; c += panel)
      use(c, std::min(panel, columns - c));
  }
};

// Some rows of a matrix.
struct Rows {
  Matrix& matrix;
  int64_t first, count;
  double* at(int64_t row, int64_t column) const {
    return matrix.at(first + row, column);
  }
};

inline Rows all(Matrix& matrix) {
  return {matrix, 0, matrix.rows};
}

// to = a b, or to += a b
inline void multiply(const Rows& a, const Rows& b, const Rows& to,
              bool add = false) {
  const int64_t panel = a.matrix.panel, inner = b.count;
  Product<double> product{};
  product.rows = a.count;
  product.a_row = product.b_row = product.c_row = panel;
  product.a_outer = a.matrix.rows * panel;
  product.a_inner = 1;
  to.matrix.for_each_panel([&](int64_t column, int64_t) {
    product.c = to.at(0, column);
    product.add = add;
    for (int64_t k = 0; k < inner;) {
      const int64_t whole = std::min(inner - k, inner_at_once) / panel;
      product.outer = whole ? whole : 1;
      product.inner = whole ? panel : inner - k;
      product.a = a.at(0, k);
      product.b = b.at(k, column);
      kernels<double>().product(product);
      product.add = true;
      k += product.outer * product.inner;
    }
  });
}

// to = a^T b, or to += a^T b
inline void multiply_transposed(const Rows& a, const Rows& b,
                         const Rows& to, bool add = false) {
  const int64_t panel = a.matrix.panel;
  Product<double> product{};
  product.outer = 1;
  product.a_row = 1;
  product.a_inner = product.b_row = product.c_row = panel;
  to.matrix.for_each_panel([&](int64_t column, int64_t) {
    for (int64_t k = 0; k < a.count; k += inner_at_once) {
      product.inner = std::min(inner_at_once, a.count - k);
      product.b = b.at(k, column);
      product.add = add || k > 0;
      a.matrix.for_each_panel([&](int64_t row, int64_t count) {
        product.rows = count;
        product.a = a.at(k, row);
        product.c = to.at(row, column);
        kernels<double>().product(product);
      });
    }
  });
}

// to += factor * from
inline void add_rows(const Rows& from, const Rows& to, double factor = 1.0) {
  to.matrix.for_each_panel([&](int64_t column, int64_t) {
    const double* source = from.at(0, column);
    double* target = to.at(0, column);
    for (int64_t i = 0; i < to.count * to.matrix.panel; i++)
      target[i] += factor * source[i];
  });
}

// to = from + from b, in which the product is added up by itself: beside the
// larger number, its sum would lose digits.
inline void advance(const Rows& from, Matrix& b, const Rows& to) {
  multiply(from, all(b), to);
  add_rows(from, to);
}

inline void transpose(const Rows& from, Matrix& to) {
  const int64_t panel = to.panel;
  from.matrix.for_each_panel([&](int64_t column, int64_t count) {
    for (int64_t first = 0; first < from.count; first += panel) {
      const int64_t rows = std::min(panel, from.count - first);
      const double* source = from.at(first, column);
      double* target = to.at(column, first);
      for (int64_t i = 0; i < count; i++)
        for (int64_t r = 0; r < rows; r++)
          target[i * panel + r] = source[r * panel + i];
    }
  });
}

// --- the discretisation ---------------------------------------------------

// One feature's (Abar - I)^T = F Z, F = Q (D T^T + I), M^T Z = dt Q^-1, as
// many columns at a time as `kernels.h` names.
class Discretisation {
 public:
  Discretisation(const Parameters& parameters, double alpha)
      : w_(parameters),
        system_(parameters, alpha),
        size_(parameters.p.size()),
        left_(size_),
        middle_(size_),
        right_(size_),
        columns_(size_ * band_columns),
        products_(size_ * band_columns),
        d_products_(size_ * band_columns) {
    for (int64_t n = 0; n < size_; n++) {
      const double weight = w_.q[n] * w_.d[n];
      left_[n] = n > 0 ? weight * w_.above[n - 1] : 0.0;
      middle_[n] = weight * w_.diagonal[n] + w_.q[n];
      right_[n] = weight * w_.below[n];
    }
  }

  void begin(double timescale) { system_.begin(timescale); }

  void give_input_vector(const Rows& to) const {
    for (int64_t n = 0; n < size_; n++) *to.at(0, n) = input(n);
  }

  void give_transition(Matrix& to) {
    for (int64_t first = 0; first < size_; first += band_columns) {
      solve_columns(first);
      multiply_bands(left_, middle_, right_, columns_, products_);
      for_each_panel_of(first, to, [&](int64_t panel, int64_t count) {
        for (int64_t n = 0; n < size_; n++)
          std::copy_n(row(products_, n) + panel, count,
                      to.at(n, first + panel));
      });
    }
  }

  // Adds to `gradient`, and returns the timescale's. `d_transition` is null
  // where the transition was not needed.
  double backward(const Matrix* d_transition, const Rows& d_input,
                  Parameters& gradient) {
    System::Sums sums(size_);
    if (d_transition) {
      // Of the bands of F.
      Numbers left(size_), middle(size_), right(size_);
      for (int64_t first = 0; first < size_; first += band_columns) {
        load_columns(*d_transition, first);
        solve_columns(first);
        add_bands(products_, columns_, left, middle, right);
        backward_columns(first, sums, gradient);
      }
      for (int64_t n = 0; n < size_; n++) {
        const double q = w_.q[n];
        gradient.q[n] += (left[n] * left_[n] + middle[n] * middle_[n] +
                          right[n] * right_[n]) /
                         q;
        system_.backward_column(n, q * left[n], q * middle[n], q * right[n],
                                gradient);
      }
    }
    Numbers slopes(size_);
    for (int64_t n = 0; n < size_; n++) {
      slopes[n] = *d_input.at(0, n) / w_.q[n];
      gradient.q[n] -= slopes[n] * input(n);
    }
    system_.backward_input(slopes, sums, gradient);
    return system_.backward_elimination(sums, gradient);
  }

 private:
  static double* row(Numbers& rows, int64_t n) {
    return rows.data() + n * band_columns;
  }

  double input(int64_t n) const {
    return system_.timescale() * system_.solution()[n] / w_.q[n];
  }

  // Calls use(column, count) for each panel of so many columns.
  template <class Use>
  void for_each_panel_of(int64_t first, const Matrix& matrix, Use use) const {
    const int64_t columns = std::min(band_columns, size_ - first);
    for (int64_t c = 0; c < columns; c += matrix.panel)
      use(c, std::min(matrix.panel, columns - c));
  }

  // products_ = some columns of the matrix
  void load_columns(const Matrix& matrix, int64_t first) {
    std::fill(products_.begin(), products_.end(), 0.0);
    for_each_panel_of(first, matrix, [&](int64_t panel, int64_t count) {
      for (int64_t n = 0; n < size_; n++)
        std::copy_n(matrix.at(n, first + panel), count,
                    row(products_, n) + panel);
    });
  }

  // columns_ = some columns of Z
  void solve_columns(int64_t first) {
    std::fill(columns_.begin(), columns_.end(), 0.0);
    const int64_t end = std::min(first + band_columns, size_);
    for (int64_t n = first; n < end; n++)
      row(columns_, n)[n - first] = system_.timescale() / w_.q[n];
    solve_bands(system_.factors_transposed(), system_.below(), first, columns_);
  }

  // From products_, the cotangent of F Z, and columns_, which are Z.
  void backward_columns(int64_t first, System::Sums& sums,
                        Parameters& gradient) {
    // F^T has the bands of F shifted by a row.
    Numbers left(size_), right(size_);
    for (int64_t n = 1; n < size_; n++) {
      left[n] = right_[n - 1];
      right[n - 1] = left_[n];
    }
    multiply_bands(left, middle_, right, products_, d_products_);
    solve_bands(system_.factors(), system_.above(), 0, d_products_);
    const int64_t end = std::min(first + band_columns, size_);
    for (int64_t n = first; n < end; n++) {
      const double slope = row(d_products_, n)[n - first] / w_.q[n];
      sums.timescale += slope;
      gradient.q[n] -= slope * system_.timescale() / w_.q[n];
    }
    // That of M^T is -(d_products Z^T); that of M, the other way round.
    for (double& number : d_products_) number = -number;
    add_bands(columns_, d_products_, sums.below, sums.diagonal, sums.above);
  }

  void solve_bands(const Numbers& factors, const Numbers& above, int64_t first,
                   Numbers& right) const {
    instruction_set().solve_bands({size_, first, factors.data(),
                                   system_.inverses().data(), above.data(),
                                   right.data()});
  }

  void multiply_bands(const Numbers& left, const Numbers& middle,
                      const Numbers& right, const Numbers& from,
                      Numbers& to) const {
    instruction_set().multiply_bands({size_, left.data(), middle.data(),
                                      right.data(), from.data(), to.data()});
  }

  void add_bands(const Numbers& a, const Numbers& b, Numbers& left,
                 Numbers& middle, Numbers& right) const {
    instruction_set().add_bands(
        {size_, a.data(), b.data(), left.data(), middle.data(), right.data()});
  }

  const Parameters& w_;
  System system_;
  int64_t size_;
  Numbers left_, middle_, right_;  // F, by rows
  Numbers columns_, products_, d_products_;
};

// --- the response of one feature ------------------------------------------

class BlockedResponse {
 public:
  static constexpr int64_t width = 1;

  BlockedResponse(const Sizes& s, const Blocks& blocks,
                  const Parameters& parameters, bool backward)
      : s_(s),
        blocks_(blocks),
        discretisation_(parameters, s.alpha),
        // Going forward, only the last is needed to make the next.
        powers_(backward ? blocks.powers()
                         : std::min<int64_t>(blocks.powers(), 2),
                Matrix(s.state, s.state)),
        transposed_(s.state, blocks.powers() ? s.state : 0),
        columns_(blocks.size, s.state),
        columns_transposed_(s.state, backward ? 0 : blocks.size),
        rows_(blocks.count * s.channels, s.state),
        result_(rows_.rows, blocks.size),
        d_rows_(rows_.rows, backward ? s.state : 0),
        d_columns_(blocks.size, backward ? s.state : 0),
        d_power_(s.state, backward ? s.state : 0),
        d_power_before_(s.state, backward ? s.state : 0),
        step_(s.channels, backward ? s.state : 0) {}

  template <class Real>
  void forward(const Real* timescale, const Real* output_matrix, int64_t,
               Real* response) {
    make_columns(*timescale);
    make_rows(output_matrix);
    transpose(all(columns_), columns_transposed_);
    multiply(all(rows_), all(columns_transposed_), all(result_));
    for_each_run([&](const double* from, int64_t at, int64_t count) {
      std::copy_n(from, count, response + at);
    });
  }

  template <class Real>
  void backward(const Real* timescale, const Real* output_matrix,
                const Real* d_response, int64_t, Real* d_timescale,
                Real* d_output_matrix, Parameters& gradient) {
    make_columns(*timescale);
    make_rows(output_matrix);
    for_each_run([&](double* to, int64_t at, int64_t count) {
      std::copy_n(d_response + at, count, to);
    });
    multiply(all(result_), all(columns_), all(d_rows_));
    multiply_transposed(all(result_), all(rows_), all(d_columns_));
    backward_rows();
    for (int64_t m = 0; m < s_.channels; m++)
      d_rows_.for_each_panel([&](int64_t column, int64_t count) {
        std::copy_n(d_rows_.at(m, column), count,
                    d_output_matrix + m * s_.state + column);
      });
    backward_columns();
    *d_timescale = static_cast<Real>(
        discretisation_.backward(blocks_.powers() ? &d_power_ : nullptr,
                                 Rows{d_columns_, 0, 1}, gradient));
  }

 private:
  Matrix& power(int64_t k) { return powers_[k % powers_.size()]; }

  // columns_ = rows of Abar^i Bbar, and the powers of Abar on the way.
  void make_columns(double timescale) {
    discretisation_.begin(timescale);
    discretisation_.give_input_vector(Rows{columns_, 0, 1});
    for (int64_t k = 0; k < blocks_.powers(); k++) {
      if (k == 0) {
        discretisation_.give_transition(power(0));
      } else {
        multiply(all(power(k - 1)), all(power(k - 1)), all(power(k)));
        add_rows(all(power(k - 1)), all(power(k)), 2.0);
      }
      const int64_t half = int64_t{1} << k;
      if (half < blocks_.size)
        advance(Rows{columns_, 0, half}, power(k), Rows{columns_, half, half});
    }
  }

  // rows_ = C Abar^(j S), channel by channel for each block
  template <class Real>
  void make_rows(const Real* output_matrix) {
    for (int64_t m = 0; m < s_.channels; m++)
      rows_.for_each_panel([&](int64_t column, int64_t count) {
        std::copy_n(output_matrix + m * s_.state + column, count,
                    rows_.at(m, column));
      });
    if (blocks_.count == 1) return;
    transpose(all(power(blocks_.doublings)), transposed_);
    for (int64_t j = 1; j < blocks_.count; j++)
      advance(block_of(rows_, j - 1), transposed_, block_of(rows_, j));
  }

  Rows block_of(Matrix& rows, int64_t block) const {
    return {rows, block * s_.channels, s_.channels};
  }

  // Calls use(numbers, place, count) for each run of the response in result_,
  // which has a row for each channel of each block.
  template <class Use>
  void for_each_run(Use use) {
    result_.for_each_panel([&](int64_t column, int64_t width) {
      for (int64_t j = 0; j < blocks_.count; j++) {
        const int64_t first = j * blocks_.size + column;
        const int64_t count = std::min(width, s_.time - first);
        if (count <= 0) return;
        for (int64_t m = 0; m < s_.channels; m++)
          use(result_.at(j * s_.channels + m, column), m * s_.time + first,
              count);
      }
    });
  }

  void backward_rows() {
    if (blocks_.count == 1) return;
    for (int64_t j = blocks_.count - 1; j > 0; j--) {
      advance(block_of(d_rows_, j), power(blocks_.doublings), all(step_));
      add_rows(all(step_), block_of(d_rows_, j - 1));
    }
    const int64_t steps = rows_.rows - s_.channels;
    multiply_transposed(Rows{d_rows_, s_.channels, steps},
                        Rows{rows_, 0, steps}, all(d_power_));
  }

  // From the last power to the first, of which d_power_ is the cotangent.
  void backward_columns() {
    for (int64_t k = blocks_.doublings - 1; k >= 0; k--) {
      transpose(all(power(k)), transposed_);
      const bool squared = k + 1 < blocks_.powers();
      if (squared) {
        multiply(all(d_power_), all(transposed_), all(d_power_before_));
        multiply_transposed(all(power(k)), all(d_power_), all(d_power_before_),
                            true);
        add_rows(all(d_power_), all(d_power_before_), 2.0);
      }
      const int64_t half = int64_t{1} << k;
      const Rows first{d_columns_, 0, half}, second{d_columns_, half, half};
      multiply_transposed(Rows{columns_, 0, half}, second, all(d_power_before_),
                          squared);
      // The second half of the columns themselves is of no more use.
      const Rows scratch{columns_, half, half};
      advance(second, transposed_, scratch);
      add_rows(scratch, first);
      std::swap(d_power_before_.numbers, d_power_.numbers);
    }
  }

  const Sizes& s_;
  const Blocks& blocks_;
  Discretisation discretisation_;
  std::vector<Matrix> powers_;  // (Abar^(2^k) - I)^T
  Matrix transposed_, columns_, columns_transposed_, rows_, result_;
  Matrix d_rows_, d_columns_, d_power_, d_power_before_, step_;
};

}  // namespace keras_linrec
