// Nonlinear recurrences, one step after another. A share of the batch's rows
// goes through all steps in one thread, its state in the cache; the products
// are those of a step's rows with the recurrent matrix. Of the forward pass
// only the states are kept. The backward pass computes what else it needs anew,
// for a block of steps at once, since there all states are known; so are the
// products that add up the gradients of the weights.
#include <algorithm>

#include "arrays.h"
#include "parallel.h"

namespace keras_linrec {
namespace {

// Multiplications and additions below which one thread is as fast.
constexpr int64_t least_work_a_thread = 1 << 19;
// Rows of a batch that go through time together: more than the products need.
constexpr int64_t most_rows = 64;
// Numbers of a block's tiles in the backward pass: they should stay in the
// second level of the cache.
constexpr int64_t block_numbers = 1 << 17;

// Features so few that each is better off with a product of its own.
constexpr int64_t few_features = 4;

// An explicit Runge-Kutta method in which stage i starts from h + shift_i dt
// k_{i-1}.
struct Method {
  int stages;
  double shifts[4], shares[4];
};
constexpr Method methods[] = {
    {1, {0}, {1}},
    {1, {0}, {1}},
    {2, {0, 0.5}, {0, 1}},
    {4, {0, 0.5, 0.5, 1}, {1 / 6., 1 / 3., 1 / 3., 1 / 6.}},
};

struct Sizes {
  int64_t groups, batch, time, features, units, rank, kept, d_kept;
  double leak;
  bool linear, gated, per_step, step_gradient, solved;
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
           !(linear && rank) && !(in_pairs() && units % 2);
  }
  bool in_pairs() const {
    return activation == kOplu || activation == kModrelu;
  }
  const Method& method() const { return methods[solver]; }
  int64_t driven() const { return (1 + gated) * units; }
  int64_t recurrent() const { return rank ? rank : (1 + linear) * units; }
  int64_t biases() const { return activation == kModrelu ? units / 2 : 0; }
  int64_t steps() const { return per_step ? batch * time : 1; }
  int64_t work() const {
    return batch * time * (rank ? 2 * rank : recurrent()) * units;
  }
  // The batch in so many shares of rows.
  int64_t shares() const {
    const int64_t most = std::min<int64_t>(keras_linrec::threads(), batch);
    const int64_t threads = std::clamp<int64_t>(work() / least_work_a_thread, 1,
                                                std::max<int64_t>(most, 1));
    const int64_t rounds =
        (batch + threads * most_rows - 1) / (threads * most_rows);
    return std::min(std::max<int64_t>(rounds, 1) * threads, batch);
  }
  int threads() const {
    return static_cast<int>(std::min<int64_t>(
        std::max(keras_linrec::threads(), 1), std::max<int64_t>(shares(), 1)));
  }
};

// Which unit a column of a tile is, or -1. The units of a pair lie half a panel
// apart.
template <class Real>
class Columns {
 public:
  Columns(int64_t count, Activation activation = kLinear)
      : count_(count), activation_(activation) {}
  int64_t panel() const { return kernels<Real>().panel; }
  int64_t panels() const { return (count_ + panel() - 1) / panel(); }
  int64_t size() const { return panels() * panel(); }
  int64_t count() const { return count_; }
  bool ordered() const {
    return activation_ != kOplu && activation_ != kModrelu;
  }
  int64_t unit(int64_t column) const {
    if (ordered()) return column < count_ ? column : -1;
    const int64_t half = panel() / 2;
    const int64_t second = column % panel() >= half;
    const int64_t pair = column / panel() * half + column % half;
    if (pair >= count_ / 2) return -1;
    return activation_ == kOplu ? 2 * pair + second
                                : pair + second * (count_ / 2);
  }
  void into(const Real* from, Real* to, int64_t stride) const {
    for (int64_t p = 0; p < panels(); p++, to += stride)
      if (ordered() && (p + 1) * panel() <= count_)
        std::copy_n(from + p * panel(), panel(), to);
      else
        for (int64_t c = 0; c < panel(); c++) {
          const int64_t u = unit(p * panel() + c);
          to[c] = u < 0 ? 0 : from[u];
        }
  }
  void out_of(const Real* from, int64_t stride, Real* to) const {
    for (int64_t p = 0; p < panels(); p++, from += stride)
      if (ordered() && (p + 1) * panel() <= count_)
        std::copy_n(from, panel(), to + p * panel());
      else
        for (int64_t c = 0; c < panel(); c++) {
          const int64_t u = unit(p * panel() + c);
          if (u >= 0) to[u] = from[c];
        }
  }

 private:
  int64_t count_;
  Activation activation_;
};

// Rows by columns, panel by panel. `rows` is how many there is room for.
template <class Real>
struct Tile {
  std::vector<Real> numbers;
  int64_t panels = 0, panel = 0, rows = 0;
  Tile() = default;
  Tile(int64_t rows, int64_t columns)
      : numbers(rows * columns),
        panels(columns / kernels<Real>().panel),
        panel(kernels<Real>().panel),
        rows(rows) {}
  int64_t stride() const { return rows * panel; }
  Real* at(int64_t p, int64_t row = 0) {
    return numbers.data() + p * stride() + row * panel;
  }
  const Real* at(int64_t p, int64_t row = 0) const {
    return numbers.data() + p * stride() + row * panel;
  }
};

// A matrix as the right factor of products: for each panel of its columns, all
// rows. And an accumulator of the same layout, for its gradient.
template <class Real>
using Matrix = Tile<Real>;

template <class Real>
Matrix<Real> pack(const Real* from, const Columns<Real>& rows,
                  const Columns<Real>& columns, int64_t row, int64_t column,
                  Real sign = 1) {
  Matrix<Real> packed(rows.size(), columns.size());
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
void unpack(const Matrix<Real>& packed, const Columns<Real>& rows,
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

// Rows of a product's left factor, and where its numbers lie.
template <class Real>
struct Left {
  const Real* numbers;
  int64_t row, outer, inner, outer_stride, inner_stride;
};

// The columns of a tile from some panel on. Padding in an only panel is left
// out.
template <class Real>
Left<Real> of_tile(const Tile<Real>& tile, const Columns<Real>& columns,
                   int64_t row, int64_t first = 0) {
  const bool few = columns.ordered() && columns.count() < tile.panel;
  return {tile.at(first, row),
          tile.panel,
          columns.panels(),
          few ? columns.count() : tile.panel,
          tile.stride(),
          1};
}

// `panels` panels of `to`, from the first on, (+)= left @ right.
template <class Real>
void multiply(int64_t rows, const Left<Real>& left, const Matrix<Real>& right,
              Tile<Real>& to, int64_t first, int64_t row, bool add) {
  Product<Real> product{};
  product.rows = rows;
  product.outer = left.outer;
  product.inner = left.inner;
  product.a = left.numbers;
  product.a_row = left.row;
  product.a_outer = left.outer_stride;
  product.a_inner = left.inner_stride;
  product.b_row = right.panel;
  product.c_row = to.panel;
  product.add = add;
  for (int64_t p = 0; p < right.panels; p++) {
    product.b = right.at(p);
    product.c = to.at(first + p, row);
    kernels<Real>().product(product);
  }
}

// sums += left^T @ right for the first `rows` rows of tiles, `columns` columns
// of the left one, and `panels` panels of the right one from `first` on.
template <class Real>
void add_products(int64_t rows, const Tile<Real>& left, int64_t columns,
                  const Tile<Real>& right, int64_t first, int64_t panels,
                  Matrix<Real>& sums) {
  Product<Real> product{};
  product.outer = 1;
  product.inner = rows;
  product.a_row = 1;
  product.a_inner = left.panel;
  product.b_row = product.c_row = right.panel;
  product.add = true;
  for (int64_t q = 0; q < panels; q++)
    for (int64_t column = 0; column < columns; column += left.panel) {
      product.rows = std::min(left.panel, columns - column);
      product.a = left.at(column / left.panel);
      product.b = right.at(first + q);
      product.c = sums.at(q, column);
      kernels<Real>().product(product);
    }
}

template <class Real>
void add(const std::vector<Real>& from, std::vector<Real>& to) {
  for (size_t i = 0; i < from.size(); i++) to[i] += from[i];
}

template <class Real>
struct Arguments {
  const Real *inputs, *input_kernel, *bias, *recurrent, *expansion, *steps,
      *modulus_bias, *initial;
};

// What both passes know: the columns' order, and the right factors.
template <class Real>
struct Weights {
  Sizes s;
  // `driving` are the features and, to be multiplied by the bias, a one.
  Columns<Real> units, features, driving, ranks;
  int64_t panels;  // of the units
  // The driving inputs' kernels and biases, a gate's behind; and the kernels'
  // rows one by one.
  std::vector<Matrix<Real>> input;
  std::vector<Real> input_rows;
  std::vector<Real> bias;
  // A (if there is one), then R; or R's factors, the second negated.
  std::vector<Matrix<Real>> recurrent;
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
    // A pair's is its first number's column's.
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

  // The driving inputs of step t, but for the bias, for `rows` rows of the
  // batch from `first` on.
  void drive(int64_t t, int64_t first, int64_t rows, Tile<Real>& to,
             int64_t row) const {
    const Left<Real> left{
        arguments.inputs + (first * s.time + t) * s.features,
        s.time * s.features, 1, s.features, 0, 1};
    for (size_t part = 0; part < input.size(); part++)
      multiply(rows, left, input[part], to, part * panels, row, false);
  }

  // The lengths of step t for the same rows.
  void step_sizes(int64_t t, int64_t first, int64_t rows, Real* to) const {
    for (int64_t r = 0; r < rows; r++)
      to[r] = s.per_step ? arguments.steps[(first + r) * s.time + t]
                         : arguments.steps[0];
  }
};

// The tiles of one stage. Those that the backward pass reads have room for all
// rows of a block, which lie step by step.
template <class Real>
struct Stage {
  Tile<Real> start;     // the state that it starts from
  Tile<Real> argument;  // of the activation, and of the gate
  Tile<Real> linear;    // A h
  Tile<Real> product;   // R h, where gate and activation share it
  Tile<Real> inner;     // h @ R's first factor
  Tile<Real> change, slope;
  Stage(const Weights<Real>& w, int64_t rows)
      : start(rows, w.units.size()),
        argument(rows, (1 + w.s.gated) * w.units.size()),
        linear(w.s.linear ? rows : 0, w.units.size()),
        product(w.s.gated ? rows : 0, w.units.size()),
        inner(w.s.rank ? rows : 0, w.ranks.size()),
        change(w.s.gated ? rows : 0, w.units.size()),
        slope(rows, w.units.size()) {}
};

template <class Real>
class Pass {
 public:
  Pass(const Weights<Real>& weights, int64_t rows)
      : w_(weights),
        s_(weights.s),
        drive_(s_.method().stages > 1 ? rows : 0,
               (1 + s_.gated) * weights.units.size()),
        factors_(rows),
        scaled_(rows),
        stages_(s_.method().stages, Stage<Real>(weights, rows)) {}

 protected:
  // to = base + factor dt from, for `rows` rows of every panel.
  void add_scaled(const Tile<Real>& base, int64_t base_row,
                  const Tile<Real>& from, int64_t from_row, double factor,
                  Tile<Real>& to, int64_t to_row, int64_t rows,
                  const Real* steps, int64_t panels = 0) {
    for (int64_t r = 0; r < rows; r++)
      scaled_[r] = static_cast<Real>(factor) * (steps ? steps[r] : Real{1});
    for (int64_t p = 0; p < (panels ? panels : to.panels); p++) {
      AddScaled<Real> call{};
      call.rows = rows;
      call.factors = scaled_.data();
      call.base = base.at(p, base_row);
      call.from = from.at(p, from_row);
      call.to = to.at(p, to_row);
      kernels<Real>().add_scaled(call);
    }
  }

  // Where the driving inputs go: at once to the only stage there is.
  Tile<Real>& drive() {
    return stages_.size() > 1 ? drive_ : stages_[0].argument;
  }

  // The response of a stage to its `start`: the slope, or the new state.
  void respond(int64_t rows, Stage<Real>& stage, bool remember,
               bool wants_linear, bool wants_slope) {
    Tile<Real>& product = s_.gated ? stage.product : stage.argument;
    for (int64_t p = 0; stages_.size() > 1 && p < drive_.panels; p++)
      std::copy_n(drive_.at(p), rows * drive_.panel, stage.argument.at(p));
    const Left<Real> left = of_tile(stage.start, w_.units, 0);
    if (s_.rank) {
      multiply(rows, left, w_.recurrent[0], stage.inner, 0, 0, false);
      const Left<Real> inner = of_tile(stage.inner, w_.ranks, 0);
      multiply(rows, inner, w_.recurrent[1], product, 0, 0, !s_.gated);
      this->add_scaled(product, 0, stage.start, 0, 1, product, 0, rows,
                       nullptr, w_.panels);
    } else {
      multiply(rows, left, w_.recurrent.back(), product, 0, 0, !s_.gated);
    }
    if (s_.linear && wants_linear)
      multiply(rows, left, w_.recurrent[0], stage.linear, 0, 0, false);

    for (int64_t p = 0; p < w_.panels; p++) {
      Respond<Real> call{};
      call.rows = rows;
      call.activation = s_.activation;
      call.leak = static_cast<Real>(s_.leak);
      call.modulus_bias = w_.moduli(p);
      call.argument = stage.argument.at(p);
      call.bias = w_.bias_of(0, p);
      if (s_.linear && wants_linear) call.linear = stage.linear.at(p);
      if (s_.gated) {
        call.product = stage.product.at(p);
        call.gate = stage.argument.at(w_.panels + p);
        call.gate_bias = w_.bias_of(1, p);
        call.change = stage.change.at(p);
      }
      if (remember) call.memory = stage.argument.at(p);
      if (wants_slope) call.response = stage.slope.at(p);
      kernels<Real>().respond(call);
    }
  }

  const Weights<Real>& w_;
  const Sizes& s_;
  Tile<Real> drive_;
  std::vector<Real> factors_, scaled_;
  std::vector<Stage<Real>> stages_;
};

template <class Real>
class Forward : Pass<Real> {
  using Pass<Real>::w_;
  using Pass<Real>::s_;
  using Pass<Real>::drive_;
  using Pass<Real>::factors_;
  using Pass<Real>::stages_;

 public:
  Forward(const Weights<Real>& weights, int64_t rows)
      : Pass<Real>(weights, rows), state_(rows, weights.units.size()) {}

  void run(int64_t first, int64_t rows, Real* outputs, Real* final_state) {
    for (int64_t r = 0; r < rows; r++)
      w_.units.into(w_.arguments.initial + (first + r) * s_.units,
                    state_.at(0, r), state_.stride());
    for (int64_t t = 0; t < s_.time; t++) {
      step(t, first, rows);
      if (!outputs) continue;
      for (int64_t r = 0; r < rows; r++)
        give(r, outputs + ((first + r) * s_.time + t) * s_.units);
    }
    for (int64_t r = 0; r < rows; r++)
      give(r, final_state + (first + r) * s_.units);
  }

 private:
  void give(int64_t row, Real* to) {
    w_.units.out_of(state_.at(0, row), state_.stride(), to);
  }

  void step(int64_t t, int64_t first, int64_t rows) {
    w_.drive(t, first, rows, this->drive(), 0);
    if (!s_.solved) {
      Stage<Real>& stage = stages_[0];
      std::swap(stage.start, state_);
      this->respond(rows, stage, false, false, true);
      std::swap(stage.slope, state_);
      return;
    }
    const Method& method = s_.method();
    w_.step_sizes(t, first, rows, factors_.data());
    for (int i = 0; i < method.stages; i++) {
      Stage<Real>& stage = stages_[i];
      // The first stage's own `start` is where the sum goes.
      if (i == 0)
        copy(rows, state_, stage.start);
      else
        this->add_scaled(stages_[0].start, 0, stages_[i - 1].slope, 0,
                         method.shifts[i], stage.start, 0, rows,
                         factors_.data());
      this->respond(rows, stage, false, true, true);
      if (method.shares[i])
        this->add_scaled(state_, 0, stage.slope, 0, method.shares[i], state_, 0,
                         rows, factors_.data());
    }
  }

  void copy(int64_t rows, const Tile<Real>& from, Tile<Real>& to) {
    for (int64_t p = 0; p < to.panels; p++)
      std::copy_n(from.at(p), rows * to.panel, to.at(p));
  }

  Tile<Real> state_;
};

// What the gradients of weights add up to.
template <class Real>
struct Sums {
  // Of an input kernel, and of its bias behind.
  std::vector<Matrix<Real>> input;
  std::vector<Matrix<Real>> recurrent;
  std::vector<Real> modulus_bias;
  double step = 0;
  explicit Sums(const Weights<Real>& w) : modulus_bias(w.modulus_bias.size()) {
    for (size_t part = 0; part < w.input.size(); part++)
      input.emplace_back(w.driving.size(), w.units.size());
    for (const auto& matrix : w.recurrent)
      recurrent.emplace_back(matrix.rows, matrix.panels * matrix.panel);
  }
  void operator+=(const Sums& other) {
    for (size_t i = 0; i < input.size(); i++)
      add(other.input[i].numbers, input[i].numbers);
    for (size_t i = 0; i < recurrent.size(); i++)
      add(other.recurrent[i].numbers, recurrent[i].numbers);
    add(other.modulus_bias, modulus_bias);
    step += other.step;
  }
};

template <class Real>
struct Cotangents {
  const Real *outputs, *d_outputs, *d_final;
  Real *d_inputs, *d_steps, *d_initial;
};

// The right factors of the backward pass.
template <class Real>
struct Transposed {
  std::vector<Matrix<Real>> input, recurrent;
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

// The cotangents that a stage gives, for all rows of a block.
template <class Real>
struct StageBackward {
  Tile<Real> linear, drive, product, inner, start;
  StageBackward(const Weights<Real>& w, int64_t rows)
      : linear(w.s.linear ? rows : 0, w.units.size()),
        drive(rows, (1 + w.s.gated) * w.units.size()),
        product(w.s.gated ? rows : 0, w.units.size()),
        inner(w.s.rank ? rows : 0, w.ranks.size()),
        start(rows, w.units.size()) {}
  // Of R h: the drive's, unless a gate takes a part of it.
  const Tile<Real>& of_product() const {
    return product.rows ? product : drive;
  }
};

template <class Real>
class Backward : Pass<Real> {
  using Pass<Real>::w_;
  using Pass<Real>::s_;
  using Pass<Real>::drive_;
  using Pass<Real>::factors_;
  using Pass<Real>::stages_;

 public:
  Sums<Real> sums;

  Backward(const Weights<Real>& weights, const Transposed<Real>& transposed,
           int64_t share, int64_t steps)
      : Pass<Real>(weights, share * steps),
        sums(weights),
        transposed_(transposed),
        steps_(steps),
        carry_(share, weights.units.size()),
        total_(share, weights.units.size()),
        d_slope_(share, weights.units.size()),
        d_inputs_(share * steps, weights.features.size()),
        inputs_(share * steps, weights.driving.size()),
        backward_(stages_.size(), StageBackward<Real>(weights, share * steps)) {
    const int64_t one = s_.features;
    for (int64_t r = 0; r < inputs_.rows; r++)
      inputs_.at(one / inputs_.panel, r)[one % inputs_.panel] = 1;
  }

  void run(int64_t first, int64_t rows, const Cotangents<Real>& c) {
    for (int64_t r = 0; r < rows; r++)
      w_.units.into(c.d_final + (first + r) * s_.units, carry_.at(0, r),
                    carry_.stride());
    for (int64_t end = s_.time; end > 0; end -= steps_) {
      const int64_t begin = std::max<int64_t>(end - steps_, 0);
      recompute(begin, end, first, rows, c);
      for (int64_t t = end - 1; t >= begin; t--) {
        if (c.d_outputs) add_cotangent(t, first, rows, c);
        if (s_.solved)
          step_back(t, (t - begin) * rows, first, rows, c);
        else
          map_back((t - begin) * rows, rows);
      }
      add_up(begin, end, first, rows, c);
    }
    for (int64_t r = 0; r < rows; r++)
      w_.units.out_of(carry_.at(0, r), carry_.stride(),
                      c.d_initial + (first + r) * s_.units);
  }

 private:
  // All that the forward pass had in the steps from `begin` to `end`.
  void recompute(int64_t begin, int64_t end, int64_t first, int64_t rows,
                 const Cotangents<Real>& c) {
    const int64_t all = (end - begin) * rows;
    Tile<Real>& state = stages_[0].start;
    for (int64_t t = begin; t < end; t++) {
      const int64_t row = (t - begin) * rows;
      w_.drive(t, first, rows, this->drive(), row);
      w_.step_sizes(t, first, rows, &factors_[row]);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t b = first + r;
        w_.units.into(t ? c.outputs + (b * s_.time + t - 1) * s_.units
                        : w_.arguments.initial + b * s_.units,
                      state.at(0, row + r), state.stride());
        in_panels(s_.features, inputs_, row + r,
                  [x = w_.arguments.inputs + (b * s_.time + t) * s_.features](
                      int64_t f, Real* to, int64_t count) {
                    std::copy_n(x + f, count, to);
                  });
      }
    }
    const Method& method = s_.method();
    for (int i = 0; i < method.stages; i++) {
      if (i)
        this->add_scaled(state, 0, stages_[i - 1].slope, 0, method.shifts[i],
                         stages_[i].start, 0, all, factors_.data());
      const bool slope = i + 1 < method.stages || s_.step_gradient;
      this->respond(all, stages_[i], true, slope || s_.gated, slope);
    }
  }

  void add_cotangent(int64_t t, int64_t first, int64_t rows,
                     const Cotangents<Real>& c) {
    for (int64_t r = 0; r < rows; r++) {
      const Real* from = c.d_outputs + ((first + r) * s_.time + t) * s_.units;
      for (int64_t p = 0; p < w_.panels; p++) {
        Real* to = carry_.at(p, r);
        for (int64_t i = 0; i < carry_.panel; i++) {
          const int64_t u = w_.units.ordered()
                                ? p * carry_.panel + i
                                : w_.units.unit(p * carry_.panel + i);
          if (u >= 0 && u < s_.units) to[i] += from[u];
        }
      }
    }
  }

  // From the cotangent of a stage's response to that of its start.
  void pull_back(int i, const Tile<Real>& d_response, int64_t row,
                 int64_t rows, Tile<Real>& d_start, int64_t start_row) {
    const Stage<Real>& stage = stages_[i];
    StageBackward<Real>& back = backward_[i];
    for (int64_t p = 0; p < w_.panels; p++) {
      RespondBackward<Real> call{};
      call.rows = rows;
      call.activation = s_.activation;
      call.leak = static_cast<Real>(s_.leak);
      call.modulus_bias = w_.moduli(p);
      call.memory = stage.argument.at(p, row);
      call.d_response = d_response.at(p);
      call.d_argument = back.drive.at(p, row);
      if (s_.linear) call.d_linear = back.linear.at(p, row);
      if (s_.gated) {
        call.gate = stage.argument.at(w_.panels + p, row);
        call.change = stage.change.at(p, row);
        call.d_gate = back.drive.at(w_.panels + p, row);
      }
      if (!sums.modulus_bias.empty())
        call.d_modulus_bias =
            &sums.modulus_bias[p * w_.units.panel() / 2];
      kernels<Real>().respond_backward(call);
      if (!s_.gated) continue;
      Real* to = back.product.at(p, row);
      for (int64_t k = 0; k < rows * back.product.panel; k++)
        to[k] = call.d_argument[k] + call.d_gate[k];
    }
    const Tile<Real>& d_product = back.of_product();
    const Left<Real> left = of_tile(d_product, w_.units, row);
    if (s_.rank) {
      multiply(rows, left, transposed_.recurrent[1], back.inner, 0, row, false);
      for (int64_t p = 0; p < w_.panels; p++)
        std::copy_n(d_product.at(p, row), rows * d_start.panel,
                    d_start.at(p, start_row));
      multiply(rows, of_tile(back.inner, w_.ranks, row),
               transposed_.recurrent[0], d_start, 0, start_row, true);
      return;
    }
    multiply(rows, left, transposed_.recurrent.back(), d_start, 0, start_row,
             false);
    if (s_.linear)
      multiply(rows, of_tile(back.linear, w_.units, row),
               transposed_.recurrent[0], d_start, 0, start_row, true);
  }

  void map_back(int64_t row, int64_t rows) {
    std::swap(carry_, total_);
    pull_back(0, total_, row, rows, carry_, 0);
  }

  void step_back(int64_t t, int64_t row, int64_t first, int64_t rows,
                 const Cotangents<Real>& c) {
    const Method& method = s_.method();
    const Real* steps = &factors_[row];
    for (int64_t p = 0; p < w_.panels; p++)
      std::copy_n(carry_.at(p), rows * carry_.panel, total_.at(p));
    for (int i = method.stages - 1; i >= 0; i--) {
      const bool last = i + 1 == method.stages;
      std::fill(d_slope_.numbers.begin(), d_slope_.numbers.end(), Real{0});
      this->add_scaled(d_slope_, 0, carry_, 0, method.shares[i], d_slope_, 0,
                       rows, steps);
      if (!last)
        this->add_scaled(d_slope_, 0, backward_[i + 1].start, row,
                         method.shifts[i + 1], d_slope_, 0, rows, steps);
      if (s_.step_gradient) {
        add_step(t, i, method.shares[i], carry_, 0, row, first, rows, c);
        if (!last)
          add_step(t, i, method.shifts[i + 1], backward_[i + 1].start, row, row,
                   first, rows, c);
      }
      Tile<Real>& d_start = backward_[i].start;
      pull_back(i, d_slope_, row, rows, d_start, row);
      this->add_scaled(total_, 0, d_start, row, 1, total_, 0, rows, nullptr);
    }
    std::swap(carry_, total_);
  }

  // A step's length counts by factor * (cotangent, slope of stage i).
  void add_step(int64_t t, int i, double factor, const Tile<Real>& cotangent,
                int64_t from_row, int64_t row, int64_t first, int64_t rows,
                const Cotangents<Real>& c) {
    const Tile<Real>& slope = stages_[i].slope;
    for (int64_t r = 0; r < rows; r++) {
      double sum = 0;
      for (int64_t p = 0; p < w_.panels; p++) {
        const Real* one = cotangent.at(p, from_row + r);
        const Real* other = slope.at(p, row + r);
        for (int64_t k = 0; k < slope.panel; k++) sum += one[k] * other[k];
      }
      sum *= factor;
      if (s_.per_step)
        c.d_steps[(first + r) * s_.time + t] += static_cast<Real>(sum);
      else
        sums.step += sum;
    }
  }

  void add_up(int64_t begin, int64_t end, int64_t first, int64_t rows,
              const Cotangents<Real>& c) {
    const int64_t all = (end - begin) * rows;
    for (size_t i = 0; i < stages_.size(); i++) {
      const Tile<Real>& start = stages_[i].start;
      const StageBackward<Real>& back = backward_[i];
      const Tile<Real>& d_product = back.of_product();
      if (s_.rank) {
        add_products(all, start, w_.units.size(), back.inner, 0,
                     back.inner.panels, sums.recurrent[0]);
        add_products(all, stages_[i].inner, s_.rank, d_product, 0, w_.panels,
                     sums.recurrent[1]);
      } else {
        add_products(all, start, w_.units.size(), d_product, 0, w_.panels,
                     sums.recurrent.back());
      }
      if (s_.linear)
        add_products(all, start, w_.units.size(), back.linear, 0, w_.panels,
                     sums.recurrent[0]);
    }
    // The driving inputs are the same in all stages.
    Tile<Real>& d_drive = backward_[0].drive;
    for (size_t i = 1; i < stages_.size(); i++)
      for (int64_t p = 0; p < d_drive.panels; p++) {
        const Real* from = backward_[i].drive.at(p);
        Real* to = d_drive.at(p);
        for (int64_t k = 0; k < all * d_drive.panel; k++) to[k] += from[k];
      }
    for (size_t part = 0; part < sums.input.size(); part++) {
      add_products(all, inputs_, s_.features + 1, d_drive, part * w_.panels,
                   w_.panels, sums.input[part]);
      give_inputs(all, part, d_drive);
    }
    for (int64_t t = begin; t < end; t++)
      for (int64_t r = 0; r < rows; r++)
        in_panels(s_.features, d_inputs_, (t - begin) * rows + r,
                  [dx = c.d_inputs + ((first + r) * s_.time + t) * s_.features](
                      int64_t f, const Real* from, int64_t count) {
                    std::copy_n(from, count, dx + f);
                  });
  }

  // Calls use(first, place, count) for each panel's share of `columns`.
  template <class Use>
  static void in_panels(int64_t columns, Tile<Real>& tile, int64_t row,
                        Use use) {
    for (int64_t p = 0; p * tile.panel < columns; p++)
      use(p * tile.panel, tile.at(p, row),
          std::min(tile.panel, columns - p * tile.panel));
  }

  // The cotangents of the inputs. A product has the columns of a panel, and of
  // few features most would be for nothing.
  void give_inputs(int64_t all, int64_t part, const Tile<Real>& d_drive) {
    if (s_.features > few_features) {
      multiply(all, of_tile(d_drive, w_.units, 0, part * w_.panels),
               transposed_.input[part], d_inputs_, 0, 0, part > 0);
      return;
    }
    DotRows<Real> call{};
    call.rows = all;
    call.panels = w_.panels;
    call.panel_stride = d_drive.stride();
    call.to_row = d_inputs_.panel;
    call.a = d_drive.at(part * w_.panels);
    call.add = part > 0;
    for (int64_t f = 0; f < s_.features; f++) {
      call.b = &w_.input_rows[(part * s_.features + f) * w_.units.size()];
      call.to = d_inputs_.at(0) + f;
      kernels<Real>().dot_rows(call);
    }
  }

  const Transposed<Real>& transposed_;
  int64_t steps_;
  Tile<Real> carry_, total_, d_slope_, d_inputs_, inputs_;
  std::vector<StageBackward<Real>> backward_;
};

// Calls work(index, first, rows) for every share of the batch.
template <class Work>
void for_each_share(const Sizes& s, Work work) {
  const int64_t shares = s.shares();
  parallel(s.threads(), [&](int index, int count) {
    for (int64_t i = index; i < shares; i += count) {
      const int64_t first = s.batch * i / shares;
      work(index, first, s.batch * (i + 1) / shares - first);
    }
  });
}

template <class Real>
int64_t longest_share(const Sizes& s) {
  const int64_t shares = std::max<int64_t>(s.shares(), 1);
  return (s.batch + shares - 1) / shares;
}

// Reads a group's arrays.
template <class Real>
Arguments<Real> arguments_of(const Sizes& s, int64_t group,
                             const void* const* from) {
  const auto at = [&](int which, int64_t numbers) {
    return static_cast<const Real*>(from[which]) + group * numbers;
  };
  return {at(0, s.batch * s.time * s.features),
          at(1, s.features * s.driven()),
          at(2, s.driven()),
          at(3, s.units * s.recurrent()),
          at(4, s.rank * s.units),
          at(5, s.steps()),
          at(6, s.biases()),
          at(7, s.batch * s.units)};
}

template <class Real>
int nonlinear_scan(const Sizes& s, const void* const* from, void* const* to) {
  Real* outputs = static_cast<Real*>(to[0]);
  Real* final_state = static_cast<Real*>(to[1]);
  const int64_t row = s.time * s.units;
  if (s.kept)
    prepare_to_write(outputs, s.groups * s.batch * row * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Weights<Real> weights(s, arguments_of<Real>(s, g, from));
    std::vector<Forward<Real>> passes(
        s.threads(), Forward<Real>(weights, longest_share<Real>(s)));
    for_each_share(s, [&](int index, int64_t first, int64_t rows) {
      passes[index].run(first, rows,
                        s.kept ? outputs + g * s.batch * row : nullptr,
                        final_state + g * s.batch * s.units);
    });
  }
  return kKerasLinrecDone;
}

template <class Real>
int nonlinear_scan_backward(const Sizes& s, const void* const* from,
                            void* const* to) {
  const auto given = [&](int which, int64_t group, int64_t numbers) {
    return static_cast<const Real*>(from[which]) + group * numbers;
  };
  const auto result = [&](int which, int64_t group, int64_t numbers) {
    return static_cast<Real*>(to[which]) + group * numbers;
  };
  const int64_t states = s.batch * s.units, rows = s.batch * s.time;
  prepare_to_write(to[0], s.groups * rows * s.features * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Weights<Real> w(s, arguments_of<Real>(s, g, from));
    const Transposed<Real> transposed(w);
    Cotangents<Real> c{given(8, g, rows * s.units),
                       s.d_kept ? given(9, g, rows * s.units) : nullptr,
                       given(10, g, states),
                       result(0, g, rows * s.features),
                       result(5, g, s.steps()),
                       result(7, g, states)};
    std::fill_n(c.d_steps, s.steps(), Real{0});
    const int64_t share = std::max<int64_t>(longest_share<Real>(s), 1);
    const int64_t columns = w.units.size() * s.method().stages *
                            (5 + 2 * s.gated + 2 * s.linear);
    const int64_t steps =
        std::clamp<int64_t>(block_numbers / (columns * share), 1, s.time);
    std::vector<Backward<Real>> passes(
        s.threads(), Backward<Real>(w, transposed, share, steps));
    for_each_share(s, [&](int index, int64_t first, int64_t count) {
      passes[index].run(first, count, c);
    });
    Sums<Real>& sums = passes[0].sums;
    for (size_t i = 1; i < passes.size(); i++) sums += passes[i].sums;

    for (int part = 0; part <= s.gated; part++) {
      unpack(sums.input[part], w.features, w.units,
             result(1, g, s.features * s.driven()) + part * s.units,
             s.driven());
      w.units.out_of(sums.input[part].at(0, s.features),
                     sums.input[part].stride(),
                     result(2, g, s.driven()) + part * s.units);
    }
    Real* d_recurrent = result(3, g, s.units * s.recurrent());
    if (s.rank) {
      unpack(sums.recurrent[0], w.units, w.ranks, d_recurrent, s.rank);
      unpack(sums.recurrent[1], w.ranks, w.units,
             result(4, g, s.rank * s.units), s.units, Real{-1});
    } else {
      for (int part = 0; part <= s.linear; part++)
        unpack(sums.recurrent[part], w.units, w.units,
               d_recurrent + part * s.units, s.recurrent());
    }
    if (!s.per_step) c.d_steps[0] = static_cast<Real>(sums.step);
    std::copy_n(sums.modulus_bias.begin(), s.biases(),
                result(6, g, s.biases()));
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_nonlinear_scan(int flags, const int64_t* sizes,
                                const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return nonlinear_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_nonlinear_scan_backward(int flags, const int64_t* sizes,
                                         const void* const* from,
                                         void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid() || s.kept != s.time) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return nonlinear_scan_backward<decltype(real)>(s, from, to);
  });
}
