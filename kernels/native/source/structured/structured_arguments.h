// The parameters of structured systems among the arrays of a call, and their
// gradients.
#pragma once
#include <algorithm>
#include <vector>

#include "base/arrays.h"
#include "structured/structured_state.h"

namespace keras_linrec {

template <class Real>
struct StructuredArguments {
  In<Real> shared[5], timescale, output_matrix;

  explicit StructuredArguments(Reader<Real, const void>& read) {
    for (In<Real>& quantity : shared) quantity = read.in();
    timescale = read.in();
    output_matrix = read.in();
  }

  Parameters parameters(int64_t state, int64_t group) const {
    Parameters parameters(state);
    parameters.for_each_array([&](Numbers& numbers, int quantity, int64_t row) {
      const int64_t rows = quantity == 3 ? 3 : 1;
      std::copy_n(shared[quantity][0] + (group * rows + row) * state, state,
                  numbers.begin());
    });
    // These entries lie outside the matrix.
    parameters.above[state - 1] = parameters.below[state - 1] = 0.0;
    return parameters;
  }
};

// The gradients of the parameters that all systems share. Each job has its
// own, and they are added in a fixed order, so that the sum does not depend on
// the number of threads.
class SharedGradients {
 public:
  SharedGradients(int64_t jobs, int64_t state)
      : parts_(jobs, Parameters(0)), state_(state) {}

  Parameters& at(int64_t job) {
    return parts_[job] = Parameters(state_);
  }

  template <class Real>
  void give(const Out<Real> (&to)[5], int64_t group) {
    Parameters sum(state_);
    for (Parameters& part : parts_) {
      if (part.p.empty()) continue;
      std::vector<const Numbers*> numbers;
      part.for_each_array([&](Numbers& from, int, int64_t) {
        numbers.push_back(&from);
      });
      size_t next = 0;
      sum.for_each_array([&](Numbers& total, int, int64_t) {
        const Numbers& from = *numbers[next++];
        for (int64_t n = 0; n < state_; n++) total[n] += from[n];
      });
    }
    sum.for_each_array([&](Numbers& total, int quantity, int64_t row) {
      const int64_t rows = quantity == 3 ? 3 : 1;
      Real* target = to[quantity][0] + (group * rows + row) * state_;
      for (int64_t n = 0; n < state_; n++)
        target[n] = static_cast<Real>(total[n]);
    });
  }

 private:
  std::vector<Parameters> parts_;
  int64_t state_;
};

}  // namespace keras_linrec
