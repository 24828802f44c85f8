// Sequences with outliers, and the pieces into which these cut them.
//
// A Fourier transform rounds every number relative to the largest ones of its
// sequence, and spreads a NaN over all of it. A convolution by transforms is
// therefore causal only up to rounding: an outlier reaches the outputs before
// it. Sequences with an outlier are cut where it enters, and the responses of
// the pieces, each from its own beginning on, are added.
// kernels/outliers.py computes the same in portable form.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.h"

namespace keras_linrec {

// Within a piece, no number exceeds the first that is not zero by more than
// this factor.
constexpr double kMostGrowth = 8;
// The windows in which the magnitude of a sequence is measured.
constexpr int64_t kWindows = 16;
// Rounding stays below this share of the earlier outputs.
constexpr double kRounding = 1e-6;
// A sequence that begins this much more quietly than one with an outlier
// would is cut too.
constexpr double kQuietStart = 1e3;

// The squares of one lane's numbers, as means over windows.
template <class Real>
struct LaneEnergies {
  const Real* window;  // `stride` apart
  int64_t windows, stride;
  Real total;  // the sum of all squares
  Real largest_square;
  int64_t steps;

  // See `with_outliers` in kernels/outliers.py.
  bool has_outlier() const {
    constexpr double limit =
        kRounding / std::numeric_limits<Real>::epsilon();
    if (!std::isfinite(total)) return true;
    double sum = 0, largest = 0, first = 0;
    int64_t count = 0;
    for (int64_t w = 0; w < windows; w++) {
      const double energy = window[w * stride];
      if (energy == 0) continue;
      const double root = std::sqrt(std::sqrt(energy));
      sum += root;
      largest = std::max(largest, root);
      if (!count++) first = energy;
    }
    if (count < 2) return false;
    const double typical = std::pow((sum - largest) / (count - 1), 4);
    const double mean = double(total) / steps;
    const double growth = kMostGrowth * kMostGrowth * typical;
    return (largest_square > growth && 2 * largest_square > total) ||
           mean > limit * limit * typical ||
           mean > limit * limit * kQuietStart * kQuietStart * first;
  }
};

// Which lanes of a tile have outliers; none in most tiles.
template <class Real>
std::vector<bool> lanes_with_outliers(const FourierLanes<const Real>& from) {
  constexpr int64_t most_lanes = 16;
  constexpr Real limit = kRounding / std::numeric_limits<Real>::epsilon();
  constexpr Real growth = kMostGrowth * kMostGrowth;
  const int64_t size = std::max<int64_t>(1, from.steps / kWindows);
  // Fewer than twice as many as kWindows.
  const int64_t windows = (from.steps + size - 1) / size;
  Real energies[2 * kWindows][most_lanes], largest[most_lanes];
  kernels<Real>().measure_squares(
      {from, size, most_lanes, energies[0], largest});
  Real total[most_lanes] = {}, least[most_lanes];
  std::fill_n(least, most_lanes, std::numeric_limits<Real>::max());
  for (int64_t w = 0; w < windows; w++) {
    const Real share = Real(1) / std::min(size, from.steps - w * size);
    for (int64_t lane = 0; lane < from.lanes; lane++) {
      Real& energy = energies[w][lane];
      total[lane] += energy;
      energy *= share;
      if (energy > 0 && energy < least[lane]) least[lane] = energy;
    }
  }
  std::vector<bool> found;
  for (int64_t lane = 0; lane < from.lanes; lane++) {
    // In most sequences no window is so quiet that it matters which is typical.
    const Real quiet = std::min(limit * limit, growth) * least[lane];
    if (total[lane] <= quiet * from.steps && largest[lane] <= quiet) continue;
    const LaneEnergies<Real> energy{energies[0] + lane, windows, most_lanes,
                                    total[lane], largest[lane], from.steps};
    if (!energy.has_outlier()) continue;
    found.resize(from.lanes);
    found[lane] = true;
  }
  return found;
}

// The sequences of a tile, piece by piece.
template <class Real>
class Pieces {
 public:
  Pieces(const FourierLanes<const Real>& from, const std::vector<bool>& is_cut,
         int64_t width)
      : steps_(from.steps),
        width_(width),
        is_cut_(is_cut),
        numbers_(steps_ * width),
        piece_(steps_ * width),
        begin_(width, steps_),
        end_(width, 0),
        broken_(width, steps_) {
    for (int64_t lane = 0; lane < from.lanes; lane++) {
      const Real* at = from.numbers + (from.place ? from.place[lane] : lane);
      for (int64_t t = 0; t < steps_ && broken_[lane] == steps_; t++) {
        const Real number = at[t * from.step];
        if (std::isfinite(number))
          numbers_[t * width_ + lane] = number;
        else
          broken_[lane] = t;
      }
    }
    is_cut_.resize(width);
    for (int64_t lane = from.lanes; lane < width; lane++) end_[lane] = steps_;
  }

  // Moves on to the next piece of every lane, or returns false.
  bool next() {
    bool is_over = true;
    begin_ = end_;
    std::fill(piece_.begin(), piece_.end(), Real(0));
    for (int64_t lane = 0; lane < width_; lane++) {
      Real most = std::numeric_limits<Real>::infinity();
      int64_t t = begin_[lane];
      is_over = is_over && t == steps_;
      for (; t < steps_; t++) {
        const Real number = numbers_[t * width_ + lane];
        if (std::abs(number) > most) break;
        piece_[t * width_ + lane] = number;
        if (is_cut_[lane] && std::isinf(most) && number != 0)
          most = Real(kMostGrowth) * std::abs(number);
      }
      end_[lane] = t;
    }
    return !is_over;
  }

  // The piece of every lane, with zeros around it: (steps, width).
  FourierLanes<const Real> piece() const {
    return {piece_.data(), steps_, width_, width_, nullptr};
  }
  // Where it begins, or the number of steps if there is none.
  int64_t begin(int64_t lane) const { return begin_[lane]; }
  // The first step that is not finite, or the number of steps.
  int64_t broken(int64_t lane) const { return broken_[lane]; }

 private:
  int64_t steps_, width_;
  std::vector<bool> is_cut_;
  std::vector<Real> numbers_, piece_;
  std::vector<int64_t> begin_, end_, broken_;
};

}  // namespace keras_linrec
