// The forward pass of a nonlinear recurrence, and what both passes share.
#pragma once
#include "nonlinear/nonlinear_weights.h"

namespace keras_linrec {
namespace nonlinear {

// Rows of a tile as a left factor, with the columns from panel `first` on. The
// padding of a single panel is left out.
template <class Real>
Matrix<const Real> left_factor(const Panels<Real>& tile,
                               const Columns<Real>& columns, int64_t row,
                               int64_t rows, int64_t first = 0) {
  const bool few = columns.ordered() && columns.count() < tile.panel;
  return tile.rows_from(row, rows)
      .panels_from(first, few ? columns.count() : columns.size());
}

// The tiles of one stage. In the backward pass they hold all rows of a block,
// step by step.
template <class Real>
struct Stage {
  Panels<Real> start;     // the state from which the stage starts
  Panels<Real> argument;  // of the activation, and of the gate
  Panels<Real> linear;    // A h
  Panels<Real> product;   // R h, if gate and activation share it
  Panels<Real> inner;     // h @ R's first factor
  Panels<Real> change, slope;
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
  void add_scaled(const Panels<Real>& base, int64_t base_row,
                  const Panels<Real>& from, int64_t from_row, double factor,
                  Panels<Real>& to, int64_t to_row, int64_t rows,
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

  // The tile for the driving inputs: a single stage takes them directly.
  Panels<Real>& drive() {
    return stages_.size() > 1 ? drive_ : stages_[0].argument;
  }

  // The response of a stage to its `start`: the slope, or the new state.
  void respond(int64_t rows, Stage<Real>& stage, bool remember,
               bool wants_linear, bool wants_slope) {
    Panels<Real>& product = s_.gated ? stage.product : stage.argument;
    for (int64_t p = 0; stages_.size() > 1 && p < drive_.panels; p++)
      std::copy_n(drive_.at(p), rows * drive_.panel, stage.argument.at(p));
    const auto left = left_factor(stage.start, w_.units, 0, rows);
    if (s_.rank) {
      multiply(left, w_.recurrent[0].all(), stage.inner.all());
      multiply(left_factor(stage.inner, w_.ranks, 0, rows),
               w_.recurrent[1].all(), product.all(), !s_.gated);
      this->add_scaled(product, 0, stage.start, 0, 1, product, 0, rows,
                       nullptr, w_.panels);
    } else {
      multiply(left, w_.recurrent.back().all(), product.all(), !s_.gated);
    }
    if (s_.linear && wants_linear)
      multiply(left, w_.recurrent[0].all(), stage.linear.all());

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
  Panels<Real> drive_;
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
      w_.drop_at_resets(t, first, rows, state_);
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
      // The step's sum accumulates in state_, so the first stage gets a copy.
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

  void copy(int64_t rows, const Panels<Real>& from, Panels<Real>& to) {
    for (int64_t p = 0; p < to.panels; p++)
      std::copy_n(from.at(p), rows * to.panel, to.at(p));
  }

  Panels<Real> state_;
};

}  // namespace nonlinear
}  // namespace keras_linrec
