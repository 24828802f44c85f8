// The layout of a nonlinear recurrence's units and weights in panels.
#pragma once
#include <algorithm>

#include "base/panels.h"
#include "base/parallel.h"
#include "nonlinear/runge_kutta.h"

namespace keras_linrec {
namespace nonlinear {

// The least multiply-adds that pay for another thread.
constexpr int64_t least_work_a_thread = 1 << 19;
// The most rows of a batch that one thread processes together.
constexpr int64_t most_rows = 64;
// The same where each share has sums of its own: 16 rows at once are 2 to 4%
// faster than twice 8, and these 20% faster than four times 4. But two threads
// are faster than one.
constexpr int64_t summed_rows = 8, least_shares = 2;
// With this many features or fewer, a product for each is faster.
constexpr int64_t few_features = 4;

struct Sizes {
  int64_t groups, batch, time, features, units, rank, kept, d_kept;
  double leak;
  bool linear, gated, per_step, step_gradient, resets, solved;
  Activation activation;
  int solver;
  Sizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        units(sizes[4]),
        rank(sizes[5]),
        kept(sizes[6]),
        d_kept(sizes[7]),
        linear(flags & kKerasLinrecLinear),
        gated(flags & kKerasLinrecGated),
        per_step(flags & kKerasLinrecPerStep),
        step_gradient(flags & kKerasLinrecStepGradient),
        resets(flags & kKerasLinrecResets),
        activation(static_cast<Activation>(flags >> kKerasLinrecActivationBit &
                                           15)),
        solver(flags >> kKerasLinrecSolverBit & 15) {
    std::memcpy(&leak, &sizes[8], sizeof(leak));
    solved = solver > 0;
  }
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           units >= 1 && rank >= 0 && activation < kActivations &&
           solver < 4 && (kept == 0 || kept == time) &&
           (d_kept == 0 || d_kept == time) && (solved || !(linear || gated)) &&
           !(linear && rank) && !(is_of_pairs(activation) && units % 2);
  }
  const Method& method() const { return methods[solver]; }
  int64_t driven() const { return (1 + gated) * units; }
  int64_t recurrent() const { return rank ? rank : (1 + linear) * units; }
  int64_t biases() const { return activation == kModrelu ? units / 2 : 0; }
  int64_t steps() const { return per_step ? batch * time : 1; }
  int64_t marks() const { return resets ? batch * time : 0; }
  int64_t work() const {
    return batch * time * (rank ? 2 * rank : recurrent()) * units;
  }
  int64_t shares_of(int64_t rows) const { return (batch + rows - 1) / rows; }
  // The shares of rows that the batch is cut into: as many for each thread, or,
  // in the backward pass, the same for any number of threads, so that sums over
  // them are the same too.
  int64_t shares(bool backward) const {
    constexpr int64_t wanted = 16;
    if (backward)
      return std::max(
          shares_of(most_rows),
          std::clamp(shares_of(summed_rows),
                     std::min<int64_t>(batch, least_shares), wanted));
    const int64_t most = threads(batch);
    const int64_t rounds = (shares_of(most_rows) + most - 1) / most;
    return std::min(std::max<int64_t>(rounds, 1) * most, batch);
  }
  int64_t blocks(int64_t steps) const { return (time + steps - 1) / steps; }
  int threads(int64_t most_useful) const {
    const int64_t most =
        std::min<int64_t>(keras_linrec::threads(), most_useful);
    return static_cast<int>(std::clamp<int64_t>(work() / least_work_a_thread, 1,
                                                std::max<int64_t>(most, 1)));
  }
};

// The unit in each column of a tile, or -1. The units of a pair are half a
// panel apart.
template <class Real>
class Columns {
 public:
  Columns(int64_t count, Activation activation = kLinear)
      : count_(count),
        panel_(kernels<Real>().panel),
        panels_((count + panel_ - 1) / panel_),
        ordered_(!is_of_pairs(activation)),
        units_(size()) {
    const int64_t half = panel_ / 2, pairs = count / 2;
    for (int64_t c = 0; c < size(); c++) {
      const int64_t pair = c / panel_ * half + c % half;
      const int64_t second = c % panel_ >= half;
      if (ordered_)
        units_[c] = c < count ? c : -1;
      else if (pair >= pairs)
        units_[c] = -1;
      else
        units_[c] = activation == kOplu ? 2 * pair + second
                                        : pair + second * pairs;
    }
  }
  int64_t panel() const { return panel_; }
  int64_t panels() const { return panels_; }
  int64_t size() const { return panels_ * panel_; }
  int64_t count() const { return count_; }
  bool ordered() const { return ordered_; }
  int64_t unit(int64_t column) const { return units_[column]; }

  void into(const Real* from, Real* to, int64_t stride) const {
    for_each_panel([&](int64_t p, const int64_t* units) {
      if (units)
        for (int64_t c = 0; c < panel_; c++)
          to[p * stride + c] = units[c] < 0 ? 0 : from[units[c]];
      else
        std::copy_n(from + p * panel_, panel_, to + p * stride);
    });
  }
  void out_of(const Real* from, int64_t stride, Real* to) const {
    for_each_panel([&](int64_t p, const int64_t* units) {
      if (units)
        for (int64_t c = 0; c < panel_; c++) {
          if (units[c] >= 0) to[units[c]] = from[p * stride + c];
        }
      else
        std::copy_n(from + p * stride, panel_, to + p * panel_);
    });
  }

 private:
  // Calls use(panel, its units), with null for units in the order of columns.
  template <class Use>
  void for_each_panel(Use use) const {
    for (int64_t p = 0; p < panels_; p++)
      use(p, ordered_ && (p + 1) * panel_ <= count_ ? nullptr
                                                    : &units_[p * panel_]);
  }

  int64_t count_, panel_, panels_;
  bool ordered_;
  std::vector<int64_t> units_;
};

template <class Real>
Panels<Real> pack(const Real* from, const Columns<Real>& rows,
                  const Columns<Real>& columns, int64_t row, int64_t column,
                  Real sign = 1) {
  Panels<Real> packed(rows.size(), columns.size());
  for (int64_t c = 0; c < columns.size(); c++) {
    const int64_t to_column = columns.unit(c);
    if (to_column < 0) continue;
    Real* to = packed.at(c / packed.panel) + c % packed.panel;
    for (int64_t r = 0; r < rows.size(); r++) {
      const int64_t to_row = rows.unit(r);
      if (to_row >= 0)
        to[r * packed.panel] = sign * from[to_row * row + to_column * column];
    }
  }
  return packed;
}

template <class Real>
void unpack(const Panels<Real>& packed, const Columns<Real>& rows,
            const Columns<Real>& columns, Real* to, int64_t row,
            Real sign = 1) {
  for (int64_t c = 0; c < columns.size(); c++) {
    const int64_t column = columns.unit(c);
    if (column < 0) continue;
    const Real* from = packed.at(c / packed.panel) + c % packed.panel;
    for (int64_t r = 0; r < rows.size(); r++)
      if (rows.unit(r) >= 0)
        to[rows.unit(r) * row + column] = sign * from[r * packed.panel];
  }
}

template <class Real>
struct Arguments {
  const Real *inputs, *input_kernel, *bias, *recurrent, *expansion, *steps,
      *modulus_bias, *resets, *initial;
};

// Common to both passes: the order of columns, and the right factors.
template <class Real>
struct Weights {
  Sizes s;
  // `driving`: the features, then a one that multiplies the bias.
  Columns<Real> units, features, driving, ranks;
  int64_t panels;  // of the units
  // The kernels and biases of the driving inputs, then the gate's; and the
  // single rows of the kernels.
  std::vector<Panels<Real>> input;
  std::vector<Real> input_rows;
  std::vector<Real> bias;
  // A, if there is one, then R; or the two factors of R, the second negated.
  std::vector<Panels<Real>> recurrent;
  std::vector<Real> modulus_bias;
  const Arguments<Real> arguments;

  Weights(const Sizes& s, const Arguments<Real>& a)
      : s(s),
        units(s.units, s.activation),
        features(s.features),
        driving(s.features + 1),
        ranks(s.rank),
        panels(units.panels()),
        arguments(a) {
    for (int part = 0; part <= s.gated; part++) {
      input.push_back(pack(a.input_kernel + part * s.units, features, units,
                           s.driven(), 1));
      for (int64_t f = 0; s.features <= few_features && f < s.features; f++) {
        input_rows.resize(input_rows.size() + units.size());
        units.into(a.input_kernel + f * s.driven() + part * s.units,
                   &input_rows[input_rows.size() - units.size()],
                   units.panel());
      }
      bias.resize(bias.size() + units.size());
      units.into(a.bias + part * s.units, &bias[part * units.size()],
                 units.panel());
    }
    if (s.rank) {
      recurrent.push_back(pack(a.recurrent, units, ranks, s.rank, 1));
      recurrent.push_back(
          pack(a.expansion, ranks, units, s.units, 1, Real{-1}));
    } else {
      for (int part = 0; part <= s.linear; part++)
        recurrent.push_back(pack(a.recurrent + part * s.units, units, units,
                                 s.recurrent(), 1));
    }
    if (!s.biases()) return;
    // The bias of a pair belongs to the column of its first number.
    modulus_bias.resize(panels * units.panel() / 2);
    std::copy_n(a.modulus_bias, s.biases(), modulus_bias.begin());
  }

  const Real* moduli(int64_t panel) const {
    return modulus_bias.empty() ? nullptr
                                : &modulus_bias[panel * units.panel() / 2];
  }

  const Real* bias_of(int64_t part, int64_t panel) const {
    return &bias[part * units.size() + panel * units.panel()];
  }

  // The driving inputs of step t, without the bias, for `rows` rows of the
  // batch from `first` on.
  void drive(int64_t t, int64_t first, int64_t rows, Panels<Real>& to,
             int64_t row) const {
    const Matrix<const Real> inputs{
        arguments.inputs + (first * s.time + t) * s.features, rows, s.features,
        s.time * s.features, units.panel()};
    for (size_t part = 0; part < input.size(); part++)
      multiply(inputs, input[part].all(),
               to.rows_from(row, rows).panels_from(part * panels,
                                                   units.size()));
  }

  bool is_reset(int64_t t, int64_t row) const {
    return s.resets && arguments.resets[row * s.time + t] != Real{0};
  }

  // Drops the states, or their cotangents, of the rows of the batch from
  // `first` on that are reset before step t.
  void drop_at_resets(int64_t t, int64_t first, int64_t rows,
                      Panels<Real>& states) const {
    for (int64_t r = 0; s.resets && r < rows; r++) {
      if (!is_reset(t, first + r)) continue;
      for (int64_t p = 0; p < panels; p++)
        std::fill_n(states.at(p, r), states.panel, Real{0});
    }
  }

  // The step sizes of step t for the same rows.
  void step_sizes(int64_t t, int64_t first, int64_t rows, Real* to) const {
    for (int64_t r = 0; r < rows; r++)
      to[r] = s.per_step ? arguments.steps[(first + r) * s.time + t]
                         : arguments.steps[0];
  }
};

// The right factors of the backward pass.
template <class Real>
struct Transposed {
  std::vector<Panels<Real>> input, recurrent;
  explicit Transposed(const Weights<Real>& w) {
    const Sizes& s = w.s;
    const Arguments<Real>& a = w.arguments;
    for (int part = 0; part <= s.gated; part++)
      input.push_back(pack(a.input_kernel + part * s.units, w.units, w.features,
                           1, s.driven()));
    if (s.rank) {
      recurrent.push_back(pack(a.recurrent, w.ranks, w.units, 1, s.rank));
      recurrent.push_back(
          pack(a.expansion, w.units, w.ranks, 1, s.units, Real{-1}));
    } else {
      for (int part = 0; part <= s.linear; part++)
        recurrent.push_back(pack(a.recurrent + part * s.units, w.units, w.units,
                                 1, s.recurrent()));
    }
  }
};

}  // namespace nonlinear
}  // namespace keras_linrec
