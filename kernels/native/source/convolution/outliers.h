// Where a causal convolution by Fourier transforms has to be cut, and how.
//
// A Fourier transform rounds every number relative to the largest ones of its
// sequence, and spreads a NaN over all of it. A convolution by transforms is
// therefore causal only up to rounding: an outlier reaches the outputs before
// it, and those long after it; so do the large numbers of a response that
// grows.
//
// Sequences with an outlier are cut into the numbers of each level, and
// responses into parts within which they neither grow nor decay by much. The
// convolution of each level with each part is computed for itself, kept where
// it may differ from zero, and added. kernels/operations/outliers.py computes
// the same in portable form, and explains the constants.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/arrays.h"

namespace keras_linrec {

constexpr double kMostGrowth = 8;
constexpr int kLevel = 3;   // its logarithm to the base 2
constexpr int kGrowth = 1;  // that of PART_GROWTH
constexpr int kDecay = 6;   // that of MOST_DECAY
constexpr int64_t kNeighbours = 16;
// The windows in which the magnitude of a sequence is measured.
constexpr int64_t kWindows = 16;
constexpr double kRounding = 1e-6;
constexpr double kRoundings = 8;
constexpr double kQuietStart = 8e3;
constexpr int64_t kFewestTaps = 4;

// How much louder than the typical magnitude a sequence may be.
template <class Real>
double most_excess() {
  return std::max(kMostGrowth,
                  kRounding / (kRoundings *
                               std::numeric_limits<Real>::epsilon()));
}

// The squares of one lane's numbers, as means over windows.
template <class Real>
struct LaneEnergies {
  const Real* window;  // `stride` apart
  int64_t windows, stride;
  Real total;  // the sum of all squares
  Real largest_square;
  int64_t steps;

  // See `with_outliers` in kernels/operations/outliers.py.
  bool has_outlier() const {
    const double limit = most_excess<Real>();
    const double growth_of_all = std::max(kQuietStart, limit);
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
           mean > growth_of_all * growth_of_all * first;
  }
};

// What a look at a tile's inputs finds.
template <class Real>
struct Loudness {
  static constexpr int64_t most_lanes = 16;
  std::vector<bool> is_cut;  // the lanes with outliers; empty in most tiles
  Real total[most_lanes];    // their sums of squares
};

template <class Real>
Loudness<Real> loudness_of(const FourierLanes<const Real>& from) {
  constexpr int64_t most_lanes = Loudness<Real>::most_lanes;
  const Real limit = most_excess<Real>();
  constexpr Real growth = kMostGrowth * kMostGrowth;
  const int64_t size = std::max<int64_t>(1, from.steps / kWindows);
  // Fewer than twice as many as kWindows.
  const int64_t windows = (from.steps + size - 1) / size;
  Real energies[2 * kWindows][most_lanes], largest[most_lanes];
  kernels<Real>().measure_squares(
      {from, size, most_lanes, energies[0], largest});
  Loudness<Real> found{};
  auto& total = found.total;
  Real least[most_lanes];
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
  for (int64_t lane = 0; lane < from.lanes; lane++) {
    // In most sequences no window is so quiet that it matters which is typical.
    const Real quiet = std::min(limit * limit, growth) * least[lane];
    if (total[lane] <= quiet * from.steps && largest[lane] <= quiet) continue;
    const LaneEnergies<Real> energy{energies[0] + lane, windows, most_lanes,
                                    total[lane], largest[lane], from.steps};
    if (!energy.has_outlier()) continue;
    found.is_cut.resize(from.lanes);
    found.is_cut[lane] = true;
  }
  return found;
}

// What a look at a response finds.
template <class Real>
struct ResponseGrowth {
  Real total;       // the sum of its squares
  bool has_growth;  // beyond kMostGrowth times its beginning, or not finite
};

template <class Real>
ResponseGrowth<Real> growth_of(const Real* response, int64_t taps) {
  const int64_t count = std::max(taps / kWindows, kFewestTaps);
  const auto energy = [&](int64_t begin, int64_t end) {
    // Several sums, none of which waits for another.
    constexpr int64_t several = 16;
    Real sums[several] = {};
    int64_t k = begin;
    for (; k + several <= end; k += several)
      for (int64_t i = 0; i < several; i++)
        sums[i] += response[k + i] * response[k + i];
    Real sum = 0;
    for (; k < end; k++) sum += response[k] * response[k];
    for (int64_t i = 0; i < several; i++) sum += sums[i];
    return sum;
  };
  const int64_t middle = std::min(count, taps);
  const Real first = energy(0, middle);
  const Real total = first + energy(middle, taps);
  return {total, !(total <= Real(kMostGrowth * kMostGrowth) * first)};
}

// e of 2^e <= magnitude < 2^(e + 1), for 0 the least.
template <class Real>
int exponent_of(Real magnitude) {
  return std::ilogb(std::max(magnitude, std::numeric_limits<Real>::min()));
}

inline int floor_of_ratio(int number, int divisor) {
  const int ratio = number / divisor;
  return ratio - (number % divisor < 0);
}

// A power of two as two factors, which are numbers where it is not one.
template <class Real>
class PowerOfTwo {
 public:
  explicit PowerOfTwo(int exponent)
      : one_(std::ldexp(Real(1), exponent / 2)),
        other_(std::ldexp(Real(1), exponent - exponent / 2)) {}
  Real times(Real number) const { return number * one_ * other_; }

 private:
  Real one_, other_;
};

// The sequences of some lanes of a tile, the numbers of one level of each at a
// time.
template <class Real>
class Levels {
 public:
  Levels(const FourierLanes<const Real>& from, const std::vector<bool>& lanes,
         const std::vector<bool>& is_cut, int64_t width)
      : steps_(from.steps),
        width_(width),
        numbers_(steps_ * width),
        piece_(steps_ * width),
        levels_(steps_ * width, kNone),
        last_(steps_ * width),
        level_(width),
        broken_(width, steps_) {
    std::vector<Real> magnitudes(steps_), around(steps_);
    for (int64_t lane = 0; lane < from.lanes; lane++) {
      if (!lanes[lane]) continue;
      const Real* at = from.numbers + (from.place ? from.place[lane] : lane);
      Real largest = 0;
      for (int64_t t = 0; t < steps_; t++) {
        const Real number = at[t * from.step];
        if (!std::isfinite(number)) broken_[lane] = std::min(broken_[lane], t);
        const Real read = t < broken_[lane] ? number : Real(0);
        numbers_[t * width_ + lane] = read;
        magnitudes[t] = std::abs(read);
        largest = std::max(largest, magnitudes[t]);
      }
      const bool cut = !is_cut.empty() && is_cut[lane];
      if (cut) set_largest_around(magnitudes, around);
      for (int64_t t = 0; t < steps_; t++)
        if (magnitudes[t] > 0)
          levels_[t * width_ + lane] =
              floor_of_ratio(exponent_of(cut ? around[t] : largest), kLevel);
    }
    restart();
  }

  // Before the first level.
  void restart() { std::fill(level_.begin(), level_.end(), kHighest); }

  // Moves on to the next level of every lane, or returns false.
  bool next() {
    std::vector<int> next(width_, kNone);
    for (int64_t t = 0; t < steps_; t++)
      for (int64_t lane = 0; lane < width_; lane++) {
        const int level = levels_[t * width_ + lane];
        if (level < level_[lane]) next[lane] = std::max(next[lane], level);
      }
    level_ = next;
    bool is_over = true;
    for (int64_t lane = 0; lane < width_; lane++) {
      const bool none = level_[lane] == kNone;
      is_over = is_over && none;
      const PowerOfTwo<Real> scale(none ? 0 : -kLevel * level_[lane]);
      int64_t last = -1;
      for (int64_t t = 0; t < steps_; t++) {
        const int64_t i = t * width_ + lane;
        const bool is_member = !none && levels_[i] == level_[lane];
        piece_[i] = is_member ? scale.times(numbers_[i]) : Real(0);
        if (is_member) last = t;
        last_[i] = last;
      }
    }
    return !is_over;
  }

  // The numbers of the level, scaled by 2^-exponent, and zeros between them:
  // (steps, width).
  FourierLanes<const Real> piece() const {
    return {piece_.data(), steps_, width_, width_, nullptr};
  }
  int exponent(int64_t lane) const {
    return level_[lane] == kNone ? 0 : kLevel * level_[lane];
  }
  // Whether a number of the level lies from `begin` to `end` - 1 steps back.
  bool is_seen(int64_t t, int64_t lane, int64_t begin, int64_t end) const {
    if (t < begin) return false;
    const int64_t last = last_[(t - begin) * width_ + lane];
    return last >= 0 && last > t - end;
  }
  // The first step that is not finite, or the number of steps.
  int64_t broken(int64_t lane) const { return broken_[lane]; }

 private:
  static constexpr int kNone = std::numeric_limits<int>::min();
  static constexpr int kHighest = std::numeric_limits<int>::max();

  // The smaller one of the largest numbers before and behind each.
  void set_largest_around(const std::vector<Real>& magnitudes,
                          std::vector<Real>& around) const {
    for (int64_t t = 0; t < steps_; t++) {
      const auto largest = [&](int64_t first, int64_t last) {
        return *std::max_element(
            magnitudes.begin() + std::max<int64_t>(first, 0),
            magnitudes.begin() + std::min(last + 1, steps_));
      };
      around[t] = std::min(largest(t - kNeighbours + 1, t),
                           largest(t, t + kNeighbours - 1));
    }
  }

  int64_t steps_, width_;
  std::vector<Real> numbers_, piece_;
  std::vector<int> levels_;
  std::vector<int64_t> last_;
  std::vector<int> level_;
  std::vector<int64_t> broken_;
};

// A response, one part at a time; of none, there is none.
template <class Real>
class ResponseParts {
 public:
  ResponseParts(const Real* response, int64_t taps)
      : response_(response),
        part_of_(response ? taps : 0),
        taps_(taps),
        broken_(taps) {
    if (!response) return;
    Real before = 0, behind = 0;
    for (int64_t k = taps - 1; k >= 0; k--)
      if (!std::isfinite(response[k])) broken_ = k;
    for (int64_t k = 0; k < taps; k++) {
      before = std::max(before, magnitude(k));
      const int norm =
          exponent_of(before) + exponent_of(std::sqrt(Real(k + 1)));
      part_of_[k] = floor_of_ratio(norm, kGrowth);
    }
    for (int64_t k = taps - 1; k >= 0; k--) {
      behind = std::max(behind, magnitude(k));
      part_of_[k] -= floor_of_ratio(exponent_of(behind), kDecay);
    }
  }

  // Moves on to the next part, or returns false.
  bool next() {
    const int64_t taps = part_of_.size();
    begin_ = end_;
    if (begin_ == taps) return false;
    Real largest = 0;
    while (end_ < taps && part_of_[end_] == part_of_[begin_])
      largest = std::max(largest, magnitude(end_++));
    exponent_ = exponent_of(largest);
    return true;
  }

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int exponent() const { return exponent_; }
  // The first tap that is not finite, or the number of taps.
  int64_t broken() const { return broken_; }
  // The taps of the part, scaled by 2^-exponent, with zeros around them.
  void write(Real* to, int64_t stride) const {
    const PowerOfTwo<Real> scale(-exponent_);
    for (int64_t k = 0; k < taps_; k++)
      to[k * stride] = k >= begin_ && k < end_ && k < broken_
                           ? scale.times(response_[k])
                           : Real(0);
  }

 private:
  Real magnitude(int64_t k) const {
    return k < broken_ ? std::abs(response_[k]) : Real(0);
  }

  const Real* response_;
  std::vector<int> part_of_;
  int64_t taps_, broken_, begin_ = 0, end_ = 0;
  int exponent_ = 0;
};

}  // namespace keras_linrec
