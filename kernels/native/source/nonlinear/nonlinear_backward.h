// The backward pass of a nonlinear recurrence, block by block of its steps, and
// the sums that it makes.
#pragma once
#include <memory>
#include <mutex>
#include <utility>

#include "nonlinear/nonlinear_pass.h"

namespace keras_linrec {
namespace nonlinear {

// The gradients of the weights, summed over a share's rows and steps.
template <class Real>
struct Sums {
  // Rows of an input kernel, then its bias.
  std::vector<Panels<Real>> input;
  std::vector<Panels<Real>> recurrent;
  std::vector<Real> modulus_bias;
  double step = 0;
  std::vector<Settled> settled;
  explicit Sums(const Weights<Real>& w) : modulus_bias(w.modulus_bias.size()) {
    for (size_t part = 0; part < w.input.size(); part++)
      input.emplace_back(w.driving.size(), w.units.size());
    for (const auto& matrix : w.recurrent)
      recurrent.emplace_back(matrix.rows, matrix.panels * matrix.panel);
    settled.resize(input.size() + recurrent.size() + 1);
  }
  void settle() {
    settle_products();
    settle_biases();
  }
  // What products over a block of steps add to.
  void settle_products() {
    size_t next = 0;
    for (auto& matrix : input) settled[next++].take(matrix.numbers);
    for (auto& matrix : recurrent) settled[next++].take(matrix.numbers);
  }
  // What every step adds to.
  void settle_biases() { settled.back().take(modulus_bias); }
  // Leaves `other` with zeros.
  void operator+=(Sums& other) {
    settle();
    other.settle();
    for (size_t i = 0; i < settled.size(); i++)
      settled[i].take(other.settled[i]);
    step += std::exchange(other.step, 0.0);
  }
  // The sums that have settled, as numbers again.
  void give() {
    size_t next = 0;
    for (auto& matrix : input) settled[next++].give(matrix.numbers);
    for (auto& matrix : recurrent) settled[next++].give(matrix.numbers);
    settled[next].give(modulus_bias);
  }
};

// Adds up the sums of shares in the order of the shares, so that the number of
// threads does not change the total. Only those that wait for an earlier share
// take memory.
template <class Real>
class Total {
 public:
  Total(const Weights<Real>& weights, int64_t shares)
      : weights_(weights), total_(weights), waiting_(shares) {}

  // Sums that are zero, for a share.
  std::unique_ptr<Sums<Real>> begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Sums<Real>>(weights_);
    auto sums = std::move(free_.back());
    free_.pop_back();
    return sums;
  }
  void end(int64_t share, std::unique_ptr<Sums<Real>> sums) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_[share] = std::move(sums);
    for (; next_ < waiting_.size() && waiting_[next_]; next_++) {
      total_ += *waiting_[next_];
      free_.push_back(std::move(waiting_[next_]));
    }
  }
  Sums<Real>& all() {
    total_.settle();
    total_.give();
    return total_;
  }

 private:
  const Weights<Real>& weights_;
  Sums<Real> total_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Sums<Real>>> waiting_, free_;
  size_t next_ = 0;
};

template <class Real>
struct Cotangents {
  const Real *outputs, *d_outputs, *d_final;
  Real *d_inputs, *d_steps, *d_initial;
};

// The cotangents of one stage, for all rows of a block.
template <class Real>
struct StageBackward {
  Panels<Real> linear, drive, product, inner, start;
  StageBackward(const Weights<Real>& w, int64_t rows)
      : linear(w.s.linear ? rows : 0, w.units.size()),
        drive(rows, (1 + w.s.gated) * w.units.size()),
        product(w.s.gated ? rows : 0, w.units.size()),
        inner(w.s.rank ? rows : 0, w.ranks.size()),
        start(rows, w.units.size()) {}
  // Those of R h equal those of the drive unless there is a gate.
  const Panels<Real>& of_product() const {
    return product.rows ? product : drive;
  }
};

// What the blocks of a share's steps hand on, the last one first.
template <class Real>
struct Share {
  int64_t first = 0, rows = 0;
  int64_t silent = 0;  // blocks before the first that is given a cotangent
  Panels<Real> carry;  // the cotangent of the state behind a block
  std::unique_ptr<Sums<Real>> sums;
  Share(const Weights<Real>& w, int64_t longest)
      : carry(longest, w.units.size()) {}
};

// A block of a share goes through prepare(), step() and finish().
template <class Real>
class Backward : Pass<Real> {
  // A template has to name what it uses of a base that is one, as Forward does.
  using Pass<Real>::w_;
  using Pass<Real>::s_;
  using Pass<Real>::drive_;
  using Pass<Real>::factors_;
  using Pass<Real>::stages_;

 public:
  using Share = nonlinear::Share<Real>;

  Backward(const Weights<Real>& weights, const Transposed<Real>& transposed,
           int64_t share, int64_t steps)
      : Pass<Real>(weights, share * steps),
        transposed_(transposed),
        steps_(steps),
        total_(share, weights.units.size()),
        d_slope_(share, weights.units.size()),
        d_inputs_(share * steps, weights.features.size()),
        inputs_(share * steps, weights.driving.size()),
        backward_(stages_.size(), StageBackward<Real>(weights, share * steps)),
        zeros_(weights.units.count()) {
    const int64_t one = s_.features;
    for (int64_t r = 0; r < inputs_.rows; r++)
      inputs_.at(one / inputs_.panel, r)[one % inputs_.panel] = 1;
  }

  // Begins with `rows` rows of the batch.
  void begin(int64_t first, int64_t rows, const Cotangents<Real>& c,
             std::unique_ptr<Sums<Real>> sums, Share& share) const {
    share.first = first;
    share.rows = rows;
    share.sums = std::move(sums);
    for (int64_t r = 0; r < rows; r++)
      w_.units.into(c.d_final + (first + r) * s_.units, share.carry.at(0, r),
                    share.carry.stride());
    const int64_t blocks = s_.blocks(steps_);
    for (share.silent = 0; share.silent < blocks; share.silent++)
      if (!is_silent(span_of(share.silent), share, c)) break;
  }

  // Recomputes the forward pass of a share's block.
  void prepare(int64_t block, const Cotangents<Real>& c, const Share& share) {
    silent_ = block < share.silent;
    if (!silent_) recompute(span_of(block), share, c);
  }

  // Takes the cotangent of the state from behind a block to the one before it.
  void step(int64_t block, const Cotangents<Real>& c, Share& share) {
    const Span span = span_of(block);
    sums_ = share.sums.get();
    silent_ = silent_ || is_silent(span, share, c);
    if (!silent_) step_through(span, share, c);
    if (settles(block)) sums_->settle_biases();
    if (span.begin == 0) give_initial(share, c);
  }

  // Adds a block to the sums of its share, and gives the cotangents of its
  // inputs.
  void finish(int64_t block, const Cotangents<Real>& c, Share& share) {
    const Span span = span_of(block);
    if (silent_)
      give_zeros(span, share, c);
    else
      add_up(span, share, c);
    if (settles(block)) share.sums->settle_products();
  }

 private:
  // The steps of a block.
  struct Span {
    int64_t begin, end;
    int64_t steps() const { return end - begin; }
  };

  static bool settles(int64_t block) {
    return block % products_a_sum == products_a_sum - 1;
  }

  Span span_of(int64_t block) const {
    const int64_t end = s_.time - block * steps_;
    return {std::max<int64_t>(end - steps_, 0), end};
  }

  // Whether nothing depends on a block's steps, such as the padding of rows: no
  // cotangent is given, and none comes from later steps.
  bool is_silent(const Span& span, const Share& share,
                 const Cotangents<Real>& c) const {
    for (int64_t p = 0; p < w_.panels; p++)
      if (!all_zero(share.carry.at(p), share.rows * share.carry.panel))
        return false;
    for (int64_t r = 0; c.d_outputs && r < share.rows; r++)
      if (!all_zero(
              c.d_outputs +
                  ((share.first + r) * s_.time + span.begin) * s_.units,
              span.steps() * s_.units))
        return false;
    return true;
  }

  void give_zeros(const Span& span, const Share& share,
                  const Cotangents<Real>& c) const {
    for (int64_t b = share.first; b < share.first + share.rows; b++)
      std::fill_n(c.d_inputs + (b * s_.time + span.begin) * s_.features,
                  span.steps() * s_.features, Real{0});
  }

  void give_initial(const Share& share, const Cotangents<Real>& c) const {
    for (int64_t r = 0; r < share.rows; r++)
      w_.units.out_of(share.carry.at(0, r), share.carry.stride(),
                      c.d_initial + (share.first + r) * s_.units);
  }

  void recompute(const Span& span, const Share& share,
                 const Cotangents<Real>& c) {
    const auto [begin, end] = span;
    const int64_t first = share.first, rows = share.rows;
    const int64_t all = span.steps() * rows;
    Panels<Real>& state = stages_[0].start;
    for (int64_t t = begin; t < end; t++) {
      const int64_t row = (t - begin) * rows;
      w_.drive(t, first, rows, this->drive(), row);
      w_.step_sizes(t, first, rows, &factors_[row]);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t b = first + r;
        if (w_.is_reset(t, b))
          w_.units.into(zeros_.data(), state.at(0, row + r), state.stride());
        else
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

  void step_through(const Span& span, Share& share, const Cotangents<Real>& c) {
    for (int64_t t = span.end - 1; t >= span.begin; t--) {
      const int64_t row = (t - span.begin) * share.rows;
      if (c.d_outputs) add_cotangent(t, share, c);
      if (s_.solved)
        step_back(t, row, share, c);
      else
        map_back(row, share);
      w_.drop_at_resets(t, share.first, share.rows, share.carry);
    }
  }

  void add_cotangent(int64_t t, Share& share, const Cotangents<Real>& c) const {
    Panels<Real>& carry = share.carry;
    for (int64_t r = 0; r < share.rows; r++) {
      const Real* from =
          c.d_outputs + ((share.first + r) * s_.time + t) * s_.units;
      for (int64_t p = 0; p < w_.panels; p++) {
        Real* to = carry.at(p, r);
        for (int64_t i = 0; i < carry.panel; i++) {
          const int64_t u = w_.units.ordered()
                                ? p * carry.panel + i
                                : w_.units.unit(p * carry.panel + i);
          if (u >= 0 && u < s_.units) to[i] += from[u];
        }
      }
    }
  }

  // Computes the cotangent of a stage's start from that of its response.
  void pull_back(int i, const Panels<Real>& d_response, int64_t row,
                 int64_t rows, Panels<Real>& d_start, int64_t start_row) {
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
      if (!sums_->modulus_bias.empty())
        call.d_modulus_bias =
            &sums_->modulus_bias[p * w_.units.panel() / 2];
      kernels<Real>().respond_backward(call);
      if (!s_.gated) continue;
      Real* to = back.product.at(p, row);
      for (int64_t k = 0; k < rows * back.product.panel; k++)
        to[k] = call.d_argument[k] + call.d_gate[k];
    }
    const Panels<Real>& d_product = back.of_product();
    const auto left = left_factor(d_product, w_.units, row, rows);
    const Matrix<Real> to = d_start.rows_from(start_row, rows);
    if (s_.rank) {
      multiply(left, transposed_.recurrent[1].all(),
               back.inner.rows_from(row, rows));
      for (int64_t p = 0; p < w_.panels; p++)
        std::copy_n(d_product.at(p, row), rows * d_start.panel, to.at(p));
      multiply(left_factor(back.inner, w_.ranks, row, rows),
               transposed_.recurrent[0].all(), to, true);
      return;
    }
    multiply(left, transposed_.recurrent.back().all(), to);
    if (s_.linear)
      multiply(left_factor(back.linear, w_.units, row, rows),
               transposed_.recurrent[0].all(), to, true);
  }

  void map_back(int64_t row, Share& share) {
    std::swap(share.carry, total_);
    pull_back(0, total_, row, share.rows, share.carry, 0);
  }

  void step_back(int64_t t, int64_t row, Share& share,
                 const Cotangents<Real>& c) {
    const Method& method = s_.method();
    const Real* steps = &factors_[row];
    const int64_t first = share.first, rows = share.rows;
    Panels<Real>& carry = share.carry;
    for (int64_t p = 0; p < w_.panels; p++)
      std::copy_n(carry.at(p), rows * carry.panel, total_.at(p));
    for (int i = method.stages - 1; i >= 0; i--) {
      const bool last = i + 1 == method.stages;
      std::fill(d_slope_.numbers.begin(), d_slope_.numbers.end(), Real{0});
      this->add_scaled(d_slope_, 0, carry, 0, method.shares[i], d_slope_, 0,
                       rows, steps);
      if (!last)
        this->add_scaled(d_slope_, 0, backward_[i + 1].start, row,
                         method.shifts[i + 1], d_slope_, 0, rows, steps);
      if (s_.step_gradient) {
        add_step(t, i, method.shares[i], carry, 0, row, first, rows, c);
        if (!last)
          add_step(t, i, method.shifts[i + 1], backward_[i + 1].start, row, row,
                   first, rows, c);
      }
      Panels<Real>& d_start = backward_[i].start;
      pull_back(i, d_slope_, row, rows, d_start, row);
      this->add_scaled(total_, 0, d_start, row, 1, total_, 0, rows, nullptr);
    }
    std::swap(carry, total_);
  }

  // Adds factor * (cotangent, slope of stage i) to the gradient of step t's
  // length.
  void add_step(int64_t t, int i, double factor, const Panels<Real>& cotangent,
                int64_t from_row, int64_t row, int64_t first, int64_t rows,
                const Cotangents<Real>& c) {
    const Panels<Real>& slope = stages_[i].slope;
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
        sums_->step += sum;
    }
  }

  void add_up(const Span& span, Share& share, const Cotangents<Real>& c) {
    const auto [begin, end] = span;
    const int64_t first = share.first, rows = share.rows;
    const int64_t all = span.steps() * rows;
    Sums<Real>& sums = *share.sums;
    for (size_t i = 0; i < stages_.size(); i++) {
      const auto start = stages_[i].start.rows_from(0, all);
      const StageBackward<Real>& back = backward_[i];
      const auto d_product =
          back.of_product().rows_from(0, all).panels_from(0, w_.units.size());
      if (s_.rank) {
        const auto inner = stages_[i].inner.rows_from(0, all);
        multiply_transposed(start, back.inner.rows_from(0, all),
                            sums.recurrent[0].all(), true);
        multiply_transposed(inner.panels_from(0, s_.rank), d_product,
                            sums.recurrent[1].all(), true);
      } else {
        multiply_transposed(start, d_product, sums.recurrent.back().all(),
                            true);
      }
      if (s_.linear)
        multiply_transposed(start, back.linear.rows_from(0, all),
                            sums.recurrent[0].all(), true);
    }
    // All stages have the same driving inputs.
    Panels<Real>& d_drive = backward_[0].drive;
    for (size_t i = 1; i < stages_.size(); i++)
      for (int64_t p = 0; p < d_drive.panels; p++) {
        const Real* from = backward_[i].drive.at(p);
        Real* to = d_drive.at(p);
        for (int64_t k = 0; k < all * d_drive.panel; k++) to[k] += from[k];
      }
    for (size_t part = 0; part < sums.input.size(); part++) {
      multiply_transposed(
          inputs_.rows_from(0, all).panels_from(0, s_.features + 1),
          d_drive.rows_from(0, all).panels_from(part * w_.panels,
                                                w_.units.size()),
          sums.input[part].all(), true);
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

  // Calls use(column, numbers, count) for each panel's share of `columns`.
  template <class Use>
  static void in_panels(int64_t columns, Panels<Real>& tile, int64_t row,
                        Use use) {
    for (int64_t p = 0; p * tile.panel < columns; p++)
      use(p * tile.panel, tile.at(p, row),
          std::min(tile.panel, columns - p * tile.panel));
  }

  // The cotangents of the inputs. A product computes all columns of a panel,
  // most of which would be wasted on few features.
  void give_inputs(int64_t all, int64_t part, const Panels<Real>& d_drive) {
    if (s_.features > few_features) {
      multiply(left_factor(d_drive, w_.units, 0, all, part * w_.panels),
               transposed_.input[part].all(), d_inputs_.all(), part > 0);
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
  Sums<Real>* sums_ = nullptr;  // of the share that runs
  bool silent_ = false;         // whether nothing depends on the block
  Panels<Real> total_, d_slope_, d_inputs_, inputs_;
  std::vector<StageBackward<Real>> backward_;
  std::vector<Real> zeros_;
};

}  // namespace nonlinear
}  // namespace keras_linrec
