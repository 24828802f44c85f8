// Structured state-space systems x' = A x + B u with A = P (D + T^-1) Q, shared
// by the algorithms for their impulse response. All numbers are float64.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/arrays.h"

namespace keras_linrec {

typedef Aligned<double> Numbers;

struct Sizes {
  int64_t groups, features, channels, state, time;
  double alpha;
  int64_t block;
  explicit Sizes(const int64_t* sizes)
      : groups(sizes[0]),
        features(sizes[1]),
        channels(sizes[2]),
        state(sizes[3]),
        time(sizes[4]),
        block(sizes[6]) {
    std::memcpy(&alpha, sizes + 5, sizeof alpha);
  }
  bool valid() const {
    return groups >= 0 && features >= 0 && channels >= 0 && state >= 1 &&
           time >= 1 && (block == -1 || (block & (block - 1)) == 0);
  }
};

// The parameters that all features share, or their gradients. The bands of T
// are indexed by column: above[n - 1], diagonal[n], below[n] are in column n.
struct Parameters {
  Numbers p, d, q, above, diagonal, below, b;
  explicit Parameters(int64_t state)
      : p(state),
        d(state),
        q(state),
        above(state),
        diagonal(state),
        below(state),
        b(state) {}

  // Calls use(numbers, quantity, row) for the arrays in the core's order.
  template <class Use>
  void for_each_array(Use use) {
    use(p, 0, 0);
    use(d, 1, 0);
    use(q, 2, 0);
    use(above, 3, 0);
    use(diagonal, 3, 1);
    use(below, 3, 2);
    use(b, 4, 0);
  }
};

// One feature's system. With
//
//   M = T diag(scale) - alpha dt I,  scale = 1 / (P Q) - alpha dt D,
//
// Abar - I = dt Q^-1 M^-1 (T D + I) Q and Bbar = dt Q^-1 M^-1 T P^-1 B.
class System {
 public:
  System(const Parameters& parameters, double alpha)
      : w_(parameters),
        alpha_(alpha),
        size_(parameters.p.size()),
        scale_(size_),
        above_(size_),
        diagonal_(size_),
        below_(size_),
        inverses_(size_),
        factors_(size_),
        factors_transposed_(size_),
        solution_(size_),
        right_side_(size_) {}

  void begin(double timescale) {
    timescale_ = timescale;
    for (int64_t n = 0; n < size_; n++)
      scale_[n] = 1.0 / (w_.p[n] * w_.q[n]) - shift() * w_.d[n];
    for (int64_t n = 0; n < size_; n++) {
      const bool last = n + 1 == size_;
      above_[n] = last ? 0.0 : w_.above[n] * scale_[n + 1];
      diagonal_[n] = w_.diagonal[n] * scale_[n] - shift();
      below_[n] = last ? 0.0 : w_.below[n] * scale_[n];
      double pivot = diagonal_[n];
      if (n > 0) {
        factors_[n] = below_[n - 1] * inverses_[n - 1];
        factors_transposed_[n] = above_[n - 1] * inverses_[n - 1];
        pivot -= factors_[n] * above_[n - 1];
      }
      inverses_[n] = 1.0 / pivot;
    }
    solve_for_input();
  }

  int64_t size() const { return size_; }
  double timescale() const { return timescale_; }
  const Parameters& parameters() const { return w_; }
  // The elimination of M. M^T has the same pivots, and `below` above its
  // diagonal.
  const Numbers& above() const { return above_; }
  const Numbers& diagonal() const { return diagonal_; }
  const Numbers& below() const { return below_; }
  const Numbers& inverses() const { return inverses_; }
  const Numbers& factors() const { return factors_; }
  const Numbers& factors_transposed() const { return factors_transposed_; }
  // M^-1 T P^-1 B
  const Numbers& solution() const { return solution_; }

  // Cotangents of M's bands, indexed by row (below[n] is in row n), of the
  // timescale, and of alpha dt.
  struct Sums {
    Numbers below, diagonal, above;
    double timescale = 0.0, shift = 0.0;
    explicit Sums(int64_t size) : below(size), diagonal(size), above(size) {}
  };

  // Pulls back the cotangent of Q Bbar.
  void backward_input(Numbers slopes, Sums& sums, Parameters& gradient) const {
    for (int64_t n = 0; n < size_; n++) {
      sums.timescale += slopes[n] * solution_[n];
      slopes[n] *= timescale_;
    }
    solve(slopes, factors_transposed_, below_);
    for (int64_t n = 0; n < size_; n++) {
      sums.diagonal[n] -= slopes[n] * solution_[n];
      gradient.diagonal[n] += slopes[n] * right_side_[n];
      double d_right_side = w_.diagonal[n] * slopes[n];
      if (n > 0) {
        sums.below[n] -= slopes[n] * solution_[n - 1];
        gradient.below[n - 1] += slopes[n] * right_side_[n - 1];
        d_right_side += w_.above[n - 1] * slopes[n - 1];
      }
      if (n + 1 < size_) {
        sums.above[n] -= slopes[n] * solution_[n + 1];
        gradient.above[n] += slopes[n] * right_side_[n + 1];
        d_right_side += w_.below[n] * slopes[n + 1];
      }
      gradient.b[n] += d_right_side / w_.p[n];
      gradient.p[n] -= d_right_side * right_side_[n] / w_.p[n];
    }
  }

  // Pulls back the cotangents of column n of T D + I.
  void backward_column(int64_t n, double d_above, double d_diagonal,
                       double d_below, Parameters& gradient) const {
    gradient.d[n] += d_diagonal * w_.diagonal[n];
    gradient.diagonal[n] += d_diagonal * w_.d[n];
    if (n > 0) {
      gradient.d[n] += d_above * w_.above[n - 1];
      gradient.above[n - 1] += d_above * w_.d[n];
    }
    if (n + 1 < size_) {
      gradient.d[n] += d_below * w_.below[n];
      gradient.below[n] += d_below * w_.d[n];
    }
  }

  // Pulls back the cotangents of M; returns the gradient of the timescale.
  double backward_elimination(Sums& sums, Parameters& gradient) const {
    for (int64_t n = 0; n < size_; n++) {
      double d_scale = sums.diagonal[n] * w_.diagonal[n];
      gradient.diagonal[n] += sums.diagonal[n] * scale_[n];
      if (n > 0) {
        d_scale += sums.above[n - 1] * w_.above[n - 1];
        gradient.above[n - 1] += sums.above[n - 1] * scale_[n];
      }
      if (n + 1 < size_) {
        d_scale += sums.below[n + 1] * w_.below[n];
        gradient.below[n] += sums.below[n + 1] * scale_[n];
      }
      const double p = w_.p[n], q = w_.q[n];
      gradient.d[n] -= shift() * d_scale;
      gradient.p[n] -= d_scale / (p * p * q);
      gradient.q[n] -= d_scale / (p * q * q);
      sums.shift -= sums.diagonal[n] + w_.d[n] * d_scale;
    }
    return sums.timescale + alpha_ * sums.shift;
  }

 private:
  double shift() const { return alpha_ * timescale_; }

  // numbers = M^-1 numbers, or M^-T numbers.
  void solve(Numbers& numbers, const Numbers& factors,
             const Numbers& above) const {
    for (int64_t n = 1; n < size_; n++)
      numbers[n] -= factors[n] * numbers[n - 1];
    for (int64_t n = size_ - 1; n >= 0; n--) {
      if (n + 1 < size_) numbers[n] -= above[n] * numbers[n + 1];
      numbers[n] *= inverses_[n];
    }
  }

  void solve_for_input() {
    for (int64_t n = 0; n < size_; n++) right_side_[n] = w_.b[n] / w_.p[n];
    for (int64_t n = 0; n < size_; n++) {
      solution_[n] = w_.diagonal[n] * right_side_[n];
      if (n > 0) solution_[n] += w_.below[n - 1] * right_side_[n - 1];
      if (n + 1 < size_) solution_[n] += w_.above[n] * right_side_[n + 1];
    }
    solve(solution_, factors_, above_);
  }

  const Parameters& w_;
  double alpha_, timescale_ = 0.0;
  int64_t size_;
  Numbers scale_, above_, diagonal_, below_;
  Numbers inverses_, factors_, factors_transposed_;
  Numbers solution_, right_side_;
};

}  // namespace keras_linrec
