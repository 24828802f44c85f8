// Steps of structured systems.
#pragma once
#include "base/lane_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// The lanes are a pair of vectors, whose sums overlap in time. With more lanes,
// a row would take several lines of the cache, of which each pass reads one:
// these fall into a half of its sets. For a response of 64 features and its
// gradient at (1000, 64), these loops take 24.6 ms of a core with AVX2 with
// sixteen lanes, and 16.0 with eight.
typedef Pair<double> Group;
constexpr int64_t lanes = 2 * Group::width;

INLINE void step_group(const LaneSteps& s, int64_t step) {
  const double* from = s.state + step * s.stride;
  double* to = s.state + (step + 1) * s.stride;
  Group before{}, here = Group::load(from), eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes;
    const Group next = Group::load(from + row + lanes);
    eliminated = s.middle[n] * here + s.left[n] * before + s.right[n] * next -
                 Group::load(s.factors + row) * eliminated;
    eliminated.store(s.scratch + row);
    before = here;
    here = next;
  }
  for (int64_t m = 0; m < s.channels; m++) {
    const double* read_out = s.read_out + m * s.size * lanes;
    Group even{}, odd{};
    int64_t n = 0;
    for (; n + 1 < s.size; n += 2) {
      const int64_t row = n * lanes;
      even = even + Group::load(read_out + row) * Group::load(from + row);
      odd = odd + Group::load(read_out + row + lanes) *
                      Group::load(from + row + lanes);
    }
    if (n < s.size)
      even = even +
             Group::load(read_out + n * lanes) * Group::load(from + n * lanes);
    (even + odd).store(s.outputs + (step * s.channels + m) * lanes);
  }
  Group moved{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    moved = Group::load(s.scratch + row) * Group::load(s.inverses + row) -
            Group::load(s.above + row) * moved;
    (Group::load(from + row) + moved).store(to + row);
  }
}

void step_lanes(const LaneSteps& s) {
  for (int64_t step = 0; step < s.steps; step++) step_group(s, step);
}

INLINE void step_group_backward(const LaneStepsBackward& s, int64_t step) {
  double* slopes = s.slopes + step * s.size * lanes;
  Group slope{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    slope = Group::load(s.scratch + row) * Group::load(s.inverses + row) -
            Group::load(s.transposed_above + row) * slope;
    slope.store(slopes + row);
  }
  // The cotangent of the state before the step, and the forward half of its
  // solution with M^T.
  const double* d_outputs = s.d_outputs + step * s.channels * lanes;
  Group below{}, here = slope, eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes;
    Group next{};
    if (n + 1 < s.size) next = Group::load(slopes + (n + 1) * lanes);
    Group d_state = Group::load(s.d_state + row) +
                    s.transposed_middle[n] * here +
                    s.transposed_left[n] * below +
                    s.transposed_right[n] * next;
    for (int64_t m = 0; m < s.channels; m++)
      d_state = d_state + Group::load(s.read_out + m * s.size * lanes + row) *
                              Group::load(d_outputs + m * lanes);
    if (s.d_states)
      d_state = d_state +
                Group::load(s.d_states + step * s.size * lanes + row);
    d_state.store(s.d_state + row);
    eliminated = d_state - Group::load(s.transposed_factors + row) * eliminated;
    eliminated.store(s.scratch + n * lanes);
    below = here;
    here = next;
  }
}

void step_lanes_backward(const LaneStepsBackward& s) {
  for (int64_t step = s.steps - 1; step >= 0; step--)
    step_group_backward(s, step);
}

INLINE void add_group(double* to, Group sum) {
  (Group::load(to) + sum).store(to);
}

// One row over all steps, with its sums in registers.
INLINE void add_row_to_bands(const LaneSums& s, int64_t n) {
  const int64_t row = n * lanes;
  // Beyond the first and the last row: any finite number, which is ignored.
  const int64_t left = n > 0 ? row - lanes : row;
  const double* states = s.states;
  const double* slopes = s.slopes + row;
  const int64_t places[3] = {left, row, row + lanes};
  Group before[3]{}, after[3]{}, slope{};
  // The state after a step is the one before the next.
  for (int64_t step = 0; step < s.steps; step++) {
    const Group next = Group::load(slopes);
    UNROLL for (int band = 0; band < 3; band++) {
      const Group state = Group::load(states + places[band]);
      after[band] = after[band] + slope * state;
      before[band] = before[band] + next * state;
    }
    slope = next;
    states += s.stride;
    slopes += s.size * lanes;
  }
  UNROLL for (int band = 0; band < 3; band++)
    after[band] = after[band] + slope * Group::load(states + places[band]);
  UNROLL for (int band = 0; band < 3; band++) {
    add_group(s.before[band] + row, before[band]);
    add_group(s.after[band] + row, after[band]);
  }
}

INLINE void add_row_to_read_out(const LaneSums& s, int64_t n) {
  const int64_t row = n * lanes;
  for (int64_t m = 0; m < s.channels; m++) {
    Group sum{};
    for (int64_t step = 0; step < s.steps; step++)
      sum = sum +
            Group::load(s.states + step * s.stride + row) *
                Group::load(s.d_outputs + (step * s.channels + m) * lanes);
    add_group(s.d_read_out + m * s.size * lanes + row, sum);
  }
}

void add_lanes(const LaneSums& s) {
  for (int64_t n = 0; n < s.size; n++) {
    if (s.slopes) add_row_to_bands(s, n);
    add_row_to_read_out(s, n);
  }
}

}  // namespace
}  // namespace keras_linrec
