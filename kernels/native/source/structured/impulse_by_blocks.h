// The impulse response in blocks of time, one feature at a time, so that its
// working set stays in the cache. Step j S + i is reached by i steps within a
// block of S steps and j whole blocks:
//
//   response[j S + i] = (C Abar^(j S)) (Abar^i Bbar).
//
// All matrices are stored as Abar^k - I: with small time steps Abar^k is close
// to the identity, and few digits of the difference would be left. They are
// stored transposed, as most products need them. The backward pass recomputes
// them. All sums are float64: a system can grow by orders of magnitude before
// it decays, and its rounding errors with it.
#pragma once
#include <algorithm>

#include "base/panels.h"
#include "structured/structured_state.h"

namespace keras_linrec {

// The blocks of time: `count` blocks of 2^doublings steps each.
struct Blocks {
  int64_t size = 1, count, doublings = 0;
  Blocks(int64_t time, int64_t wanted) {
    while (size < wanted && size < time) {
      size *= 2;
      doublings++;
    }
    count = (time + size - 1) / size;
  }
  // The number of powers of the transition; the last is that of a block.
  int64_t powers() const { return count > 1 ? doublings + 1 : doublings; }
};

typedef Matrix<double> Rows;

// to += factor * from
template <class Real>
void add_rows(const Matrix<Real>& from, const Matrix<Real>& to,
              Real factor = 1) {
  const int64_t panel = to.row;
  for (int64_t p = 0; p * panel < to.columns; p++) {
    const Real* source = from.at(p);
    Real* target = to.at(p);
    for (int64_t i = 0; i < to.rows * panel; i++)
      target[i] += factor * source[i];
  }
}

// to = from + from b. The product is summed separately: added to the larger
// number term by term, it would lose digits.
template <class Real>
void advance(const Matrix<Real>& from, Panels<Real>& b,
             const Matrix<Real>& to) {
  multiply(from, b.all(), to);
  add_rows(from, to);
}

inline void transpose(const Panels<double>& from, Panels<double>& to) {
  const int64_t panel = to.panel;
  from.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
    for (int64_t first = 0; first < from.rows; first += panel) {
      const int64_t rows = std::min(panel, from.rows - first);
      const double* source = from.at(p, first);
      double* target = to.at(first / panel, column);
      for (int64_t i = 0; i < count; i++)
        for (int64_t r = 0; r < rows; r++)
          target[i * panel + r] = source[r * panel + i];
    }
  });
}

// --- the discretisation ---------------------------------------------------

// (Abar - I)^T of one feature, as F Z with F = Q (D T^T + I) and
// M^T Z = dt Q^-1, `band_columns` columns at a time.
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

  // Writes the first row.
  void give_input_vector(Panels<double>& to) const {
    to.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
      for (int64_t i = 0; i < count; i++) to.at(p)[i] = input(column + i);
    });
  }

  void give_transition(Panels<double>& to) {
    for (int64_t first = 0; first < size_; first += band_columns) {
      solve_columns(first);
      multiply_bands(left_, middle_, right_, columns_, products_);
      for_each_panel_of(first, to, [&](int64_t p, int64_t place,
                                       int64_t count) {
        for (int64_t n = 0; n < size_; n++)
          std::copy_n(row(products_, n) + place, count, to.at(p, n));
      });
    }
  }

  // Adds to `gradient` and returns the gradient of the timescale.
  // `d_transition` is null if the transition was not needed; only the first row
  // of `d_input` is read.
  double backward(const Panels<double>* d_transition,
                  const Panels<double>& d_input, Parameters& gradient) {
    System::Sums sums(size_);
    if (d_transition) {
      // The cotangents of the bands of F.
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
    d_input.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
      for (int64_t n = column; n < column + count; n++) {
        slopes[n] = d_input.at(p)[n - column] / w_.q[n];
        gradient.q[n] -= slopes[n] * input(n);
      }
    });
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

  // Calls use(panel, its first column, count) for each panel of the
  // `band_columns` columns from `first` on; the column counts from `first`.
  template <class Use>
  void for_each_panel_of(int64_t first, const Panels<double>& matrix,
                         Use use) const {
    const int64_t columns = std::min(band_columns, size_ - first);
    for (int64_t c = 0; c < columns; c += matrix.panel)
      use((first + c) / matrix.panel, c, std::min(matrix.panel, columns - c));
  }

  // products_ = some columns of the matrix
  void load_columns(const Panels<double>& matrix, int64_t first) {
    std::fill(products_.begin(), products_.end(), 0.0);
    for_each_panel_of(first, matrix, [&](int64_t p, int64_t place,
                                         int64_t count) {
      for (int64_t n = 0; n < size_; n++)
        std::copy_n(matrix.at(p, n), count, row(products_, n) + place);
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

  // Pulls back products_, the cotangent of F Z, with columns_ = Z.
  void backward_columns(int64_t first, System::Sums& sums,
                        Parameters& gradient) {
    // The bands of F^T are those of F, shifted by a row.
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
    // The cotangent of M^T is -(d_products Z^T); that of M, its transpose.
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
  static int64_t width() { return 1; }

  BlockedResponse(const Sizes& s, const Blocks& blocks,
                  const Parameters& parameters, bool backward)
      : s_(s),
        blocks_(blocks),
        discretisation_(parameters, s.alpha),
        // The forward pass needs only the last power to make the next.
        powers_(backward ? blocks.powers()
                         : std::min<int64_t>(blocks.powers(), 2),
                Panels<double>(s.state, s.state)),
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
    transpose(columns_, columns_transposed_);
    multiply(rows_.all(), columns_transposed_.all(), result_.all());
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
    multiply(result_.all(), columns_.all(), d_rows_.all());
    backward_rows();
    for (int64_t m = 0; m < s_.channels; m++)
      d_rows_.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
        std::copy_n(d_rows_.at(p, m), count,
                    d_output_matrix + m * s_.state + column);
      });
    if (!d_timescale) return;
    multiply_transposed(result_.all(), rows_.all(), d_columns_.all());
    if (blocks_.count > 1) backward_last_power();
    backward_columns();
    *d_timescale = static_cast<Real>(
        discretisation_.backward(blocks_.powers() ? &d_power_ : nullptr,
                                 d_columns_, gradient));
  }

 private:
  Panels<double>& power(int64_t k) { return powers_[k % powers_.size()]; }

  // Fills the rows of columns_ with Abar^i Bbar, and powers_.
  void make_columns(double timescale) {
    discretisation_.begin(timescale);
    discretisation_.give_input_vector(columns_);
    for (int64_t k = 0; k < blocks_.powers(); k++) {
      if (k == 0) {
        discretisation_.give_transition(power(0));
      } else {
        multiply(power(k - 1).all(), power(k - 1).all(), power(k).all());
        add_rows(power(k - 1).all(), power(k).all(), 2.0);
      }
      const int64_t half = int64_t{1} << k;
      if (half < blocks_.size)
        advance(columns_.rows_from(0, half), power(k),
                columns_.rows_from(half, half));
    }
  }

  // rows_ = C Abar^(j S), channel by channel for each block
  template <class Real>
  void make_rows(const Real* output_matrix) {
    for (int64_t m = 0; m < s_.channels; m++)
      rows_.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
        std::copy_n(output_matrix + m * s_.state + column, count,
                    rows_.at(p, m));
      });
    if (blocks_.count == 1) return;
    transpose(power(blocks_.doublings), transposed_);
    for (int64_t j = 1; j < blocks_.count; j++)
      advance(block_of(rows_, j - 1), transposed_, block_of(rows_, j));
  }

  Rows block_of(Panels<double>& rows, int64_t block) const {
    return rows.rows_from(block * s_.channels, s_.channels);
  }

  // Calls use(numbers, index in the response, count) for each run of the
  // response in result_, which has a row for each channel of each block.
  template <class Use>
  void for_each_run(Use use) {
    result_.for_each_panel([&](int64_t p, int64_t column, int64_t width) {
      for (int64_t j = 0; j < blocks_.count; j++) {
        const int64_t first = j * blocks_.size + column;
        const int64_t count = std::min(width, s_.time - first);
        if (count <= 0) return;
        for (int64_t m = 0; m < s_.channels; m++)
          use(result_.at(p, j * s_.channels + m), m * s_.time + first, count);
      }
    });
  }

  void backward_rows() {
    if (blocks_.count == 1) return;
    for (int64_t j = blocks_.count - 1; j > 0; j--) {
      advance(block_of(d_rows_, j), power(blocks_.doublings), step_.all());
      add_rows(step_.all(), block_of(d_rows_, j - 1));
    }
  }

  void backward_last_power() {
    const int64_t steps = rows_.rows - s_.channels;
    multiply_transposed(d_rows_.rows_from(s_.channels, steps),
                        rows_.rows_from(0, steps), d_power_.all());
  }

  // Goes from the last power to the first, whose cotangent d_power_ becomes.
  void backward_columns() {
    for (int64_t k = blocks_.doublings - 1; k >= 0; k--) {
      transpose(power(k), transposed_);
      const bool squared = k + 1 < blocks_.powers();
      if (squared) {
        multiply(d_power_.all(), transposed_.all(), d_power_before_.all());
        multiply_transposed(power(k).all(), d_power_.all(),
                            d_power_before_.all(), true);
        add_rows(d_power_.all(), d_power_before_.all(), 2.0);
      }
      const int64_t half = int64_t{1} << k;
      const Rows first = d_columns_.rows_from(0, half);
      const Rows second = d_columns_.rows_from(half, half);
      multiply_transposed(columns_.rows_from(0, half), second,
                          d_power_before_.all(), squared);
      // The second half of columns_ itself is no longer needed.
      const Rows scratch = columns_.rows_from(half, half);
      advance(second, transposed_, scratch);
      add_rows(scratch, first);
      std::swap(d_power_before_.numbers, d_power_.numbers);
    }
  }

  const Sizes& s_;
  const Blocks& blocks_;
  Discretisation discretisation_;
  std::vector<Panels<double>> powers_;  // (Abar^(2^k) - I)^T
  Panels<double> transposed_, columns_, columns_transposed_, rows_, result_;
  Panels<double> d_rows_, d_columns_, d_power_, d_power_before_, step_;
};

}  // namespace keras_linrec
