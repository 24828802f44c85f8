// The impulse response step by step, many features side by side. With y = Q x,
// a step is
//
//   y += dt M^-1 (T D + I) y,
//
// two sweeps along a tridiagonal matrix. For short responses of large systems
// that is far less work than products of matrices. The backward pass recomputes
// the states from one in every few that it has stored.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "base/arrays.h"
#include "structured/structured_state.h"

namespace keras_linrec {

// What looks at no states.
struct NoStates {
  void operator()(...) const {}
};

class SteppedResponse {
 public:
  // With `keep`, the forward pass has the states of a run side by side too.
  SteppedResponse(const Sizes& s, const Parameters& parameters, bool backward,
                  bool keep = false)
      : s_(s),
        w_(parameters),
        system_(parameters, s.alpha),
        row_(s.state * lanes_),
        // The states of a run fit into the cache, and there are few runs.
        run_(std::max({2048 / s.state, s.time / 256, int64_t{8}})),
        runs_((s.time + run_ - 1) / run_),
        keep_(keep),
        left_(s.state),
        middle_(s.state),
        right_(s.state),
        transposed_left_(s.state),
        transposed_right_(s.state),
        factors_(row_),
        inverses_(row_),
        above_(row_),
        transposed_factors_(backward ? row_ : 0),
        transposed_above_(backward ? row_ : 0),
        read_out_(s.channels * row_),
        states_((backward || keep ? run_ + 1 : 1) * stride()),
        scratch_(row_),
        outputs_(run_ * s.channels * lanes_),
        kept_(backward ? runs_ * stride() : 0),
        d_read_out_(backward ? s.channels * row_ : 0),
        d_bands_(backward ? 6 * row_ : 0),
        slopes_(backward ? (run_ + 1) * stride() : 0) {
    for (int64_t n = 0; n < s.state; n++) {
      const bool first = n == 0, last = n + 1 == s.state;
      left_[n] = first ? 0.0 : w_.below[n - 1] * w_.d[n - 1];
      middle_[n] = w_.diagonal[n] * w_.d[n] + 1.0;
      right_[n] = last ? 0.0 : w_.above[n] * w_.d[n + 1];
      transposed_left_[n] = first ? 0.0 : w_.above[n - 1] * w_.d[n];
      transposed_right_[n] = last ? 0.0 : w_.below[n] * w_.d[n];
    }
  }

  // The features of a call.
  static int64_t width() { return instruction_set().lanes; }
  // The most steps of a run.
  int64_t run() const { return std::min(run_, s_.time); }
  // From a state in a run to the next one: a row of zeros is between them.
  int64_t stride() const { return row_ + lanes_; }

  // Calls use(first, steps, states) for each run of steps, where the states are
  // y by lanes (lane_kernels.h), before each step.
  template <class Real, class Use = NoStates>
  void forward(const Real* timescale, const Real* output_matrix, int64_t count,
               Real* response, const Use& use = {}) {
    begin(timescale, output_matrix, count);
    for (int64_t run = 0; run < runs_; run++) {
      LaneSteps call = steps(run);
      call.channels = s_.channels;
      if (keep_) call.stride = stride();
      instruction_set().step_lanes(call);
      for_each_output(run, count, [&](double& output, int64_t at) {
        response[at] = static_cast<Real>(output);
      });
      if (!keep_) continue;
      use(run * run_, call.steps, states_.data());
      std::copy_n(states_.begin() + call.steps * stride(), stride(),
                  states_.begin());
    }
  }

  // The same from the last run back, where use(...) sets `d_states`, the
  // cotangents of the states: (steps) by lanes. Null for none.
  template <class Real, class Use = NoStates>
  void backward(const Real* timescale, const Real* output_matrix,
                const Real* d_response, int64_t count, Real* d_timescale,
                Real* d_output_matrix, Parameters& gradient,
                Numbers* d_states = nullptr, const Use& use = {}) {
    begin(timescale, output_matrix, count);
    if (!d_timescale)
      return backward_read_out(d_response, count, d_output_matrix);
    for (int64_t run = 0; run < runs_; run++) {
      std::copy_n(states_.begin(), stride(), kept_.begin() + run * stride());
      instruction_set().step_lanes(steps(run));
    }
    clear({&d_read_out_, &d_bands_, &slopes_});
    for (int64_t run = runs_ - 1; run >= 0; run--) {
      std::copy_n(kept_.begin() + run * stride(), stride(), states_.begin());
      LaneSteps call = steps(run);
      call.stride = stride();
      instruction_set().step_lanes(call);
      for_each_output(run, count, [&](double& output, int64_t at) {
        output = d_response[at];
      });
      use(run * run_, call.steps, states_.data());
      step_backward(run, d_states);
    }
    for (int64_t lane = 0; lane < count; lane++)
      d_timescale[lane] = static_cast<Real>(give(
          timescale[lane], output_matrix, lane, d_output_matrix, gradient));
  }

 private:
  int64_t steps_of(int64_t run) const {
    return std::min(run_, s_.time - run * run_);
  }

  static void clear(std::initializer_list<Numbers*> all) {
    for (Numbers* numbers : all)
      std::fill(numbers->begin(), numbers->end(), 0.0);
  }

  template <class Real>
  void begin(const Real* timescale, const Real* output_matrix, int64_t count) {
    // Lanes without a feature stay at zero.
    clear({&factors_, &inverses_, &above_, &transposed_factors_,
           &transposed_above_, &read_out_, &states_});
    for (int64_t lane = 0; lane < count; lane++) {
      system_.begin(timescale[lane]);
      const double step = timescale[lane];
      for (int64_t n = 0; n < s_.state; n++) {
        const double inverse = system_.inverses()[n];
        const int64_t at = n * lanes_ + lane;
        factors_[at] = system_.factors()[n];
        inverses_[at] = step * inverse;
        // `above` and `below` are zero in the last row.
        const double next = system_.inverses()[std::min(n + 1, s_.state - 1)];
        above_[at] = system_.above()[n] * next;
        states_[at] = step * system_.solution()[n];
        if (transposed_above_.empty()) continue;
        transposed_factors_[at] = system_.factors_transposed()[n];
        transposed_above_[at] = system_.below()[n] * next;
      }
      for (int64_t m = 0; m < s_.channels; m++)
        for (int64_t n = 0; n < s_.state; n++)
          read_out_[m * row_ + n * lanes_ + lane] =
              output_matrix[place(lane, m, n)] / w_.q[n];
    }
  }

  int64_t place(int64_t lane, int64_t channel, int64_t n) const {
    return (lane * s_.channels + channel) * s_.state + n;
  }

  LaneSteps steps(int64_t run) {
    LaneSteps call{};
    call.system = {s_.state,          left_.data(),     middle_.data(),
                   right_.data(),     factors_.data(),  inverses_.data(),
                   above_.data(),     scratch_.data()};
    call.steps = steps_of(run);
    call.read_out = read_out_.data();
    call.state = states_.data();
    call.outputs = outputs_.data();
    return call;
  }

  // Calls use(output, index in the response) for all outputs of a run.
  template <class Use>
  void for_each_output(int64_t run, int64_t count, Use use) {
    for (int64_t row = 0; row < count * s_.channels; row++) {
      const int64_t lane = row / s_.channels, m = row % s_.channels;
      for (int64_t step = 0; step < steps_of(run); step++)
        use(outputs_[(step * s_.channels + m) * lanes_ + lane],
            row * s_.time + run * run_ + step);
    }
  }

  // The gradient of C alone, which needs no steps back.
  template <class Real>
  void backward_read_out(const Real* d_response, int64_t count,
                         Real* d_output_matrix) {
    clear({&d_read_out_});
    for (int64_t run = 0; run < runs_; run++) {
      LaneSteps call = steps(run);
      call.stride = stride();
      instruction_set().step_lanes(call);
      for_each_output(run, count, [&](double& output, int64_t at) {
        output = d_response[at];
      });
      instruction_set().add_lanes(sums(run));
      std::copy_n(states_.begin() + steps_of(run) * stride(), stride(),
                  states_.begin());
    }
    for (int64_t lane = 0; lane < count; lane++)
      for (int64_t m = 0; m < s_.channels; m++)
        for (int64_t n = 0; n < s_.state; n++)
          d_output_matrix[place(lane, m, n)] = static_cast<Real>(
              d_read_out_[m * row_ + n * lanes_ + lane] / w_.q[n]);
  }

  LaneSums sums(int64_t run) {
    LaneSums sums{};
    sums.size = s_.state;
    sums.steps = steps_of(run);
    sums.channels = s_.channels;
    sums.states = states_.data();
    sums.stride = stride();
    sums.d_outputs = outputs_.data();
    sums.d_read_out = d_read_out_.data();
    return sums;
  }

  void step_backward(int64_t run, const Numbers* d_states) {
    LaneStepsBackward call{};
    call.system = {s_.state,
                   transposed_left_.data(),
                   middle_.data(),
                   transposed_right_.data(),
                   transposed_factors_.data(),
                   inverses_.data(),
                   transposed_above_.data(),
                   scratch_.data()};
    call.steps = steps_of(run);
    call.channels = s_.channels;
    call.read_out = read_out_.data();
    call.d_outputs = outputs_.data();
    call.d_states = d_states ? d_states->data() : nullptr;
    call.slopes = slopes_.data();
    call.stride = stride();
    // That of the state after the run is the first one of the run after it.
    std::copy_n(slopes_.begin(), stride(),
                slopes_.begin() + call.steps * stride());
    instruction_set().step_lanes_backward(call);

    LaneSums wanted = sums(run);
    wanted.slopes = slopes_.data() + stride();
    for (int band = 0; band < 3; band++) {
      wanted.before[band] = d_bands_.data() + band * row_;
      wanted.after[band] = d_bands_.data() + (3 + band) * row_;
    }
    instruction_set().add_lanes(wanted);
  }

  // Row n of M^T times the slope of the first state: the cotangent times dt.
  double d_state(int64_t n, int64_t lane) const {
    const double* slopes = slopes_.data() + lane;
    double sum = system_.diagonal()[n] * slopes[n * lanes_];
    if (n > 0) sum += system_.above()[n - 1] * slopes[(n - 1) * lanes_];
    if (n + 1 < s_.state)
      sum += system_.below()[n] * slopes[(n + 1) * lanes_];
    return sum;
  }

  // Adds the gradient of a lane; returns that of its timescale.
  template <class Real>
  double give(double timescale, const Real* output_matrix, int64_t lane,
              Real* d_output_matrix, Parameters& gradient) {
    system_.begin(timescale);
    System::Sums sums(s_.state);
    Numbers slopes(s_.state);
    for (int64_t n = 0; n < s_.state; n++) {
      const double q = w_.q[n];
      slopes[n] = d_state(n, lane) / timescale;
      for (int64_t m = 0; m < s_.channels; m++) {
        const double slope = d_read_out_[m * row_ + n * lanes_ + lane] / q;
        d_output_matrix[place(lane, m, n)] = static_cast<Real>(slope);
        gradient.q[n] -= slope * output_matrix[place(lane, m, n)] / q;
      }
      auto of_product = [&](int band, int64_t row) {
        return d_bands_[band * row_ + row * lanes_ + lane];
      };
      // A step adds dt M^-1 (T D + I) y: in column n of T D + I,
      system_.backward_column(n, n > 0 ? of_product(2, n - 1) : 0.0,
                              of_product(1, n),
                              n + 1 < s_.state ? of_product(0, n + 1) : 0.0,
                              gradient);
      // and in row n of M, whose inverse gave the difference of the states.
      auto of_inverse = [&](int band, double entry) {
        const double slope =
            (of_product(band, n) - of_product(3 + band, n)) / timescale;
        sums.timescale -= slope * entry / timescale;
        return slope;
      };
      if (n > 0) sums.below[n] = of_inverse(0, system_.below()[n - 1]);
      sums.diagonal[n] = of_inverse(1, system_.diagonal()[n]);
      if (n + 1 < s_.state) sums.above[n] = of_inverse(2, system_.above()[n]);
    }
    system_.backward_input(slopes, sums, gradient);
    return system_.backward_elimination(sums, gradient);
  }

  const Sizes& s_;
  const Parameters& w_;
  System system_;
  const int64_t lanes_ = width();
  int64_t row_, run_, runs_;
  bool keep_;
  // T D + I and its transpose, by rows
  Numbers left_, middle_, right_, transposed_left_, transposed_right_;
  // By lanes: see lane_kernels.h.
  Numbers factors_, inverses_, above_, transposed_factors_, transposed_above_;
  Numbers read_out_, states_, scratch_, outputs_, kept_;
  Numbers d_read_out_, d_bands_, slopes_;
};

}  // namespace keras_linrec
