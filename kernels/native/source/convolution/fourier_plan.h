// How a Fourier transform of so many numbers is cut into stages, and its
// tables.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "convolution/fourier_kernels.h"

namespace keras_linrec {

// The radices of a transform of `points` numbers, the largest first: none where
// they are not of 2, 3 and 5 alone, or would be a single one.
inline std::vector<int64_t> radices_of(int64_t points) {
  std::vector<int64_t> radices;
  int twos = 0;
  for (; points % 2 == 0; points /= 2) twos++;
  while (twos > 0) {
    // Two fours rather than an eight and a two.
    const int bits = twos == 2 || twos == 4 ? 2 : std::min(twos, 3);
    radices.push_back(int64_t{1} << bits);
    twos -= bits;
  }
  for (int64_t radix : {3, 5})
    for (; points % radix == 0; points /= radix) radices.push_back(radix);
  if (points != 1) return {};
  if (radices.size() > 1) return radices;
  if (radices == std::vector<int64_t>{8}) return {4, 2};
  if (radices == std::vector<int64_t>{4}) return {2, 2};
  return {};
}

template <class Real>
class FourierTables {
 public:
  // For sequences of `steps` numbers at most.
  explicit FourierTables(int64_t steps) {
    choose_sizes(steps);
    plan_.stride = plan_.width + 1;
    // Frequencies are a quarter of a bin off.
    constexpr double offset = 0.25;
    fill(plan_.rows, offset, plan_.column);
    fill(plan_.width, 0.0, plan_.row);
    const int64_t radix = plan_.column.stage[0].radix;
    Numbers& shift = table(radix);
    for (int64_t q = 0; q < radix; q++) add(shift, q * offset / radix);
    plan_.shift = shift.data();
    const std::vector<int64_t> frequencies = frequencies_of(plan_.column);
    Numbers& twiddles = table(plan_.points);
    for (int64_t t = 0; t < plan_.width; t++)
      for (int64_t frequency : frequencies)
        add(twiddles, t * (frequency + offset) / plan_.points);
    plan_.twiddles = twiddles.data();
  }
  FourierTables(const FourierTables&) = delete;

  const FourierPlan<Real>& plan() const { return plan_; }

  // The tables for sequences of `steps` numbers, which are kept for some
  // lengths: those of the last calls.
  static std::shared_ptr<const FourierTables> of(int64_t steps) {
    constexpr size_t kept = 16;
    static std::mutex mutex;
    static std::list<std::pair<int64_t, std::shared_ptr<const FourierTables>>>
        all;
    std::lock_guard<std::mutex> lock(mutex);
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) {
      return entry.first == steps;
    });
    if (found == all.end()) {
      all.emplace_front(steps, std::make_shared<FourierTables>(steps));
      if (all.size() > kept) all.pop_back();
      return all.front().second;
    }
    all.splice(all.begin(), all, found);
    return found->second;
  }

 private:
  typedef std::vector<Real> Numbers;

  // The cheapest of the sizes that are not much above `steps`. The costs of
  // stages, of moving numbers and of rows that leave the first cache are fits
  // to measurements with AVX-512.
  void choose_sizes(int64_t steps) {
    constexpr int64_t least = 16;
    const int64_t from = std::max(steps, least);
    const int64_t to = from + from / 3 + 8;
    double best = INFINITY;
    for (int64_t points : smooth_numbers(to)) {
      if (points < from) continue;
      for (int64_t rows : smooth_numbers(points / 4)) {
        if (points % rows || radices_of(rows).empty()) continue;
        const int64_t width = points / rows;
        if (radices_of(width).empty()) continue;
        const double cost = cost_of(points, rows, width);
        if (cost >= best) continue;
        best = cost;
        plan_.points = points;
        plan_.rows = rows;
        plan_.width = width;
      }
    }
  }

  // Products of 2, 3 and 5 up to a limit.
  static std::vector<int64_t> smooth_numbers(int64_t limit) {
    std::vector<int64_t> numbers;
    for (int64_t fives = 1; fives <= limit; fives *= 5)
      for (int64_t threes = fives; threes <= limit; threes *= 3)
        for (int64_t twos = threes; twos <= limit; twos *= 2)
          numbers.push_back(twos);
    return numbers;
  }

  static double cost_of(int64_t points, int64_t rows, int64_t width) {
    double each = 0.5;
    for (int64_t factor : {rows, width})
      for (int64_t radix : radices_of(factor))
        each += radix == 8 ? 2.3 : radix == 5 ? 2.2 : radix == 2 ? 1.5 : 1.7;
    double cost = each * points;
    for (int64_t factor : {rows, width})
      if (factor > 256) cost *= 1.0 + 0.15 * std::log2(factor / 256.0);
    return rows > width ? 1.02 * cost : cost;
  }

  Numbers& table(int64_t count) {
    tables_.emplace_back();
    tables_.back().reserve(2 * count);
    return tables_.back();
  }

  // exp(-2 pi i turns)
  static void add(Numbers& table, double turns) {
    const double angle = -2.0 * 3.14159265358979323846 * turns;
    table.push_back(static_cast<Real>(std::cos(angle)));
    table.push_back(static_cast<Real>(std::sin(angle)));
  }

  void fill(int64_t points, double offset, FourierFactor<Real>& factor) {
    factor.points = points;
    factor.stages = 0;
    int64_t length = points;
    for (int64_t radix : radices_of(points)) {
      const int64_t below = length / radix;
      Numbers& twiddles = table(length);
      const double own = factor.stages ? 0.0 : offset;
      for (int64_t j = 0; j < below; j++)
        for (int64_t q = 0; q < radix; q++)
          add(twiddles, j * (q + own) / length);
      factor.stage[factor.stages++] = {radix, below, twiddles.data()};
      length = below;
    }
  }

  // Of each place of a transform, the frequency that comes to stand there.
  static std::vector<int64_t> frequencies_of(
      const FourierFactor<Real>& factor) {
    std::vector<int64_t> frequencies;
    for (int64_t place = 0; place < factor.points; place++) {
      int64_t frequency = 0, scale = 1, left = place;
      for (int i = 0; i < factor.stages; i++) {
        const FourierStage<Real>& stage = factor.stage[i];
        frequency += scale * (left / stage.below);
        left %= stage.below;
        scale *= stage.radix;
      }
      frequencies.push_back(frequency);
    }
    return frequencies;
  }

  FourierPlan<Real> plan_;
  std::list<Numbers> tables_;
};

}  // namespace keras_linrec
