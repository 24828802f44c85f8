// Responses with states (structured_scan.h) that start from zeros and have no
// resets. Their outputs are a convolution with the impulse response, and the
// state after L steps is
//
//   x = sum over k of Abar^k Bbar u_{L - 1 - k}:
//
// the states of the impulse response, which it is computed from step by step
// (impulse_by_steps.h), times the inputs from the last one back. No power of
// Abar is needed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/core.h"
#include "base/panel_rows.h"
#include "base/parallel.h"
#include "base/systems.h"
#include "structured/impulse_by_steps.h"
#include "structured/structured_arguments.h"
#include "structured/structured_scan_steps.h"

namespace keras_linrec {

// The final states of some features, side by side in lanes.
template <class Real>
class FinalStates {
 public:
  static int64_t width() { return SteppedResponse::width(); }

  FinalStates(const Sizes& s, int64_t batch, const Parameters& parameters,
              bool backward)
      : s_(s),
        batch_(batch),
        inverses_(s.state),
        steps_(s, parameters, backward, !backward),
        final_(lanes_, Panels<Real>(batch, s.state)),
        settled_(backward ? 0 : lanes_),
        columns_(lanes_, Panels<Real>(steps_.run(), s.state)),
        d_columns_(backward ? lanes_ : 0, columns_[0]),
        d_final_transposed_(backward ? lanes_ : 0,
                            Panels<Real>(s.state, batch)),
        d_inputs_(backward ? steps_.run() : 0, batch),
        d_states_(backward ? steps_.run() * s.state * lanes_ : 0) {
    for (int64_t n = 0; n < s.state; n++) inverses_[n] = 1.0 / parameters.q[n];
  }

  // Of `count` features from `feature` on. `recent` has all their inputs,
  // (features, batch, time), from the last one of each row back, then zeros.
  void forward(const Real* timescale, const Real* output_matrix,
               const Real* recent, int64_t feature, int64_t count,
               Real* response, Real* final_state) {
    for (int64_t lane = 0; lane < count; lane++) {
      clear(final_[lane]);
      settled_[lane] = Settled();
    }
    int64_t products = 0;
    const auto settle = [&] {
      for (int64_t lane = 0; lane < count; lane++)
        settled_[lane].take(final_[lane].numbers);
    };
    steps_.forward(
        timescale, output_matrix, count, response,
        [&](int64_t first, int64_t steps, const double* states) {
          load_columns(states, steps, count);
          for (int64_t lane = 0; lane < count; lane++)
            multiply(inputs(recent, feature + lane, first, steps),
                     columns_[lane].rows_from(0, steps), final_[lane].all(),
                     true);
          if (++products % products_a_sum == 0) settle();
        });
    settle();
    for (int64_t lane = 0; lane < count; lane++) {
      settled_[lane].give(final_[lane].numbers);
      for_each_number(final_[lane], [&](Real number, int64_t row, int64_t n) {
        final_state[place(row, feature + lane, n)] = number;
      });
    }
  }

  // `d_recent` is the cotangent of `recent`.
  void backward(const Real* timescale, const Real* output_matrix,
                const Real* recent, int64_t feature, int64_t count,
                const Real* d_response, const Real* d_final_state,
                Real* d_timescale, Real* d_output_matrix, Real* d_recent,
                Parameters& gradient) {
    for (int64_t lane = 0; lane < count; lane++)
      for_each_number(final_[lane], [&](Real& slope, int64_t row, int64_t n) {
        slope = d_final_state[place(row, feature + lane, n)];
        number_of(d_final_transposed_[lane], n, row) = slope;
      });
    std::fill(d_states_.begin(), d_states_.end(), 0.0);
    steps_.backward(
        timescale, output_matrix, d_response, count, d_timescale,
        d_output_matrix, gradient, &d_states_,
        [&](int64_t first, int64_t steps, const double* states) {
          load_columns(states, steps, count);
          for (int64_t lane = 0; lane < count; lane++) {
            multiply(columns_[lane].rows_from(0, steps),
                     d_final_transposed_[lane].all(),
                     d_inputs_.rows_from(0, steps));
            for_each_number(d_inputs_, [&](Real slope, int64_t i, int64_t row) {
              if (i < steps)
                d_recent[sequence(feature + lane, row) + first + i] = slope;
            });
            multiply_transposed(inputs(recent, feature + lane, first, steps),
                                final_[lane].all(),
                                d_columns_[lane].rows_from(0, steps));
          }
          pull_back_columns(steps, count, gradient);
        });
  }

 private:
  int64_t place(int64_t row, int64_t feature, int64_t n) const {
    return (row * s_.features + feature) * s_.state + n;
  }
  int64_t sequence(int64_t feature, int64_t row) const {
    return (feature * batch_ + row) * s_.time;
  }
  Matrix<const Real> inputs(const Real* recent, int64_t feature, int64_t first,
                            int64_t steps) const {
    return {recent + sequence(feature, 0) + first, batch_, steps, s_.time,
            kernels<Real>().panel};
  }

  // Calls use(lane, step, panel, column, count) for the columns of all lanes,
  // step by step: a step's states stay in the cache.
  template <class Use>
  void for_each_column(int64_t steps, int64_t lane_count, Use use) {
    for (int64_t i = 0; i < steps; i++)
      for (int64_t lane = 0; lane < lane_count; lane++)
        columns_[lane].for_each_panel(
            [&](int64_t p, int64_t column, int64_t count) {
              use(lane, i, p, column, count);
            });
  }

  // columns_ = x, from the states y = Q x
  void load_columns(const double* states, int64_t steps, int64_t lane_count) {
    for_each_column(steps, lane_count, [&](int64_t lane, int64_t i, int64_t p,
                                           int64_t column, int64_t count) {
      const double* from =
          states + i * steps_.stride() + column * lanes_ + lane;
      Real* to = columns_[lane].at(p, i);
      for (int64_t n = 0; n < count; n++)
        to[n] = static_cast<Real>(from[n * lanes_] * inverses_[column + n]);
    });
  }

  // From d_columns_, d_states_ and the part that Q has in the gradient.
  void pull_back_columns(int64_t steps, int64_t lane_count,
                         Parameters& gradient) {
    for_each_column(steps, lane_count, [&](int64_t lane, int64_t i, int64_t p,
                                           int64_t column, int64_t count) {
      const Real* from = d_columns_[lane].at(p, i);
      const Real* states = columns_[lane].at(p, i);
      double* to = d_states_.data() + (i * s_.state + column) * lanes_ + lane;
      double* d_q = gradient.q.data() + column;
      for (int64_t n = 0; n < count; n++) {
        const double slope = from[n] * inverses_[column + n];
        to[n * lanes_] = slope;
        d_q[n] -= slope * states[n];
      }
    });
  }

  const Sizes& s_;
  int64_t batch_;
  const int64_t lanes_ = width();
  Numbers inverses_;  // of Q
  SteppedResponse steps_;
  // For each lane: the final states, or their cotangents, and the states of a
  // run, in rows.
  std::vector<Panels<Real>> final_;
  std::vector<Settled> settled_;
  std::vector<Panels<Real>> columns_, d_columns_, d_final_transposed_;
  Panels<Real> d_inputs_;
  Numbers d_states_;
};

// A call of the scan.
template <class Real>
class FromZeros {
 public:
  FromZeros(const StructuredScanSizes& s, const void* const* from)
      : s_(s), read_(from, false), system_(read_), from_(from) {
    int64_t longest = 1;
    for (int64_t row = 0; row < s.groups * s.batch; row++) {
      lengths_.push_back(length_of<Real>(s, from, row));
      longest = std::max(longest, lengths_.back());
      all_full_ = all_full_ && lengths_.back() == s.time;
    }
    std::memcpy(&alpha_, &s.alpha, sizeof alpha_);
    const int64_t of_response[] = {s.groups, s.features, s.channels, s.state,
                                   longest,  alpha_,     0};
    std::copy_n(of_response, 7, response_sizes_);
    const int64_t of_convolution[] = {s.groups,   s.batch, s.time, s.features,
                                      s.channels, longest, 0};
    std::copy_n(of_convolution, 7, convolution_sizes_);
  }

  int forward(Real* outputs, Real* final_state) {
    const Sizes sizes(response_sizes_);
    const auto response = numbers<Real>(responses() * s_.groups);
    const auto recent = numbers<Real>(sequences());
    for (int64_t g = 0; g < s_.groups; g++) {
      gather(g, recent.get());
      const Parameters parameters = system_.parameters(s_.state, g);
      for_each_job_of(
          [&] { return FinalStates<Real>(sizes, s_.batch, parameters, false); },
          [&](FinalStates<Real>& states, int64_t feature, int64_t count) {
            const int64_t row = g * s_.features + feature;
            states.forward(timescale(row), output_matrix(row), recent.get(),
                           feature, count,
                           response.get() + row * s_.channels * sizes.time,
                           final_state + g * s_.batch * s_.states());
          });
    }
    const auto inputs = without_rests(from_[9], 1);
    const void* const given[] = {inputs.get(), response.get()};
    void* const to[] = {outputs};
    const int status = keras_linrec_causal_convolution(
        flags, convolution_sizes_, given, to);
    clear_behind(outputs, s_.channels);
    return status;
  }

  int backward(void* const* to) {
    const Sizes sizes(response_sizes_);
    const auto response = numbers<Real>(responses() * s_.groups);
    const auto d_response = numbers<Real>(responses() * s_.groups);
    Real* const d_inputs = static_cast<Real*>(to[7]);
    void* made[] = {response.get()};
    int status =
        keras_linrec_impulse_response(flags, response_sizes_, from_, made);
    if (status != kKerasLinrecDone) return status;
    {
      const auto inputs = without_rests(from_[9], 1);
      const auto d_outputs = without_rests(from_[11], s_.channels);
      const void* const given[] = {inputs.get(), response.get(),
                                   d_outputs.get()};
      void* const slopes[] = {d_inputs, d_response.get()};
      status = keras_linrec_causal_convolution_backward(
          flags, convolution_sizes_, given, slopes);
      if (status != kKerasLinrecDone) return status;
    }
    Reader<Real, void> write(to, false);
    Out<Real> d_shared[5];
    for (Out<Real>& quantity : d_shared) quantity = write.out();
    Real* const d_timescale = write.out()[0];
    Real* const d_output_matrix = write.out()[0];
    const Real* d_final_state = static_cast<const Real*>(from_[12]);
    const auto recent = numbers<Real>(sequences());
    const auto d_recent = numbers<Real>(sequences());
    for (int64_t g = 0; g < s_.groups; g++) {
      gather(g, recent.get());
      const Parameters parameters = system_.parameters(s_.state, g);
      SharedGradients gradients(s_.features, s_.state);
      for_each_job_of(
          [&] { return FinalStates<Real>(sizes, s_.batch, parameters, true); },
          [&](FinalStates<Real>& states, int64_t feature, int64_t count) {
            const int64_t row = g * s_.features + feature;
            states.backward(
                timescale(row), output_matrix(row), recent.get(), feature,
                count, d_response.get() + row * s_.channels * sizes.time,
                d_final_state + g * s_.batch * s_.states(), d_timescale + row,
                d_output_matrix + row * s_.channels * s_.state, d_recent.get(),
                gradients.at(feature));
          });
      gradients.give(d_shared, g);
      for_each_recent(g, [&](int64_t input, int64_t place) {
        d_inputs[input] += d_recent[place];
      });
    }
    clear_behind(d_inputs, 1);
    return kKerasLinrecDone;
  }

 private:
  static constexpr int flags = sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0;

  int64_t longest() const { return convolution_sizes_[5]; }
  int64_t responses() const { return s_.features * s_.channels * longest(); }
  int64_t sequences() const { return s_.features * s_.batch * longest(); }
  const Real* timescale(int64_t row) const {
    return system_.timescale[0] + row;
  }
  const Real* output_matrix(int64_t row) const {
    return system_.output_matrix[0] + row * s_.channels * s_.state;
  }

  // A thread for every few features: they have at least `lanes`.
  template <class Make, class Use>
  void for_each_job_of(const Make& make, const Use& use) const {
    const int64_t width = FinalStates<Real>::width();
    const int64_t jobs = (s_.features + width - 1) / width;
    for_each_job(static_cast<int>(std::min<int64_t>(threads(), jobs)), jobs,
                 make, [&](FinalStates<Real>& states, int64_t job) {
                   const int64_t first = job * width;
                   use(states, first, std::min(width, s_.features - first));
                 });
  }

  // Calls use(index in the inputs, index in the inputs from the last back) for
  // the steps of a group's rows.
  template <class Use>
  void for_each_recent(int64_t g, const Use& use) const {
    constexpr int64_t block = 16;
    const int64_t blocks = (s_.features + block - 1) / block;
    const int64_t rows = s_.batch * blocks;
    for_each_job(
        static_cast<int>(std::min<int64_t>(threads(), rows)), rows,
        [&](int, int64_t job) {
          const int64_t b = job / blocks, first = job % blocks * block;
          const int64_t end = std::min(first + block, s_.features);
          const int64_t row = g * s_.batch + b;
          for (int64_t k = 0; k < lengths_[row]; k++) {
            const int64_t step = row * s_.time + lengths_[row] - 1 - k;
            for (int64_t f = first; f < end; f++)
              use(step * s_.features + f, (f * s_.batch + b) * longest() + k);
          }
        });
  }

  void gather(int64_t g, Real* recent) const {
    if (!all_full_) std::fill_n(recent, sequences(), Real{0});
    const Real* inputs = static_cast<const Real*>(from_[9]);
    for_each_recent(g, [&](int64_t input, int64_t place) {
      recent[place] = inputs[input];
    });
  }

  // An array of `width` numbers a feature and step, with zeros behind the ends
  // of rows, where it may have anything.
  std::shared_ptr<const Real> without_rests(const void* array,
                                            int64_t width) const {
    const Real* given = static_cast<const Real*>(array);
    if (all_full_) return {given, [](const Real*) {}};
    const int64_t row = s_.inputs() * width;
    auto copy = numbers<Real>(lengths_.size() * row);
    std::copy_n(given, lengths_.size() * row, copy.get());
    clear_behind(copy.get(), width);
    return {copy.release(), std::default_delete<const Real[]>()};
  }

  void clear_behind(Real* array, int64_t width) const {
    for (size_t row = 0; row < lengths_.size(); row++)
      std::fill_n(array + (row * s_.time + lengths_[row]) * s_.features * width,
                  (s_.time - lengths_[row]) * s_.features * width, Real{0});
  }

  const StructuredScanSizes& s_;
  Reader<Real, const void> read_;
  StructuredArguments<Real> system_;
  const void* const* from_;
  std::vector<int64_t> lengths_;
  bool all_full_ = true;
  int64_t alpha_, response_sizes_[7], convolution_sizes_[7];
};

}  // namespace keras_linrec
