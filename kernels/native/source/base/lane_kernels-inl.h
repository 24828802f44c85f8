// Steps of structured systems.
#pragma once
#include "base/lane_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// Lanes are processed in pairs of vectors, whose sums overlap in time.
typedef Pair<double> Group;
constexpr int64_t group_lanes = 2 * Group::width;

// One step of the lanes from `first` on.
INLINE void step_group(const LaneSteps& s, int64_t first, int64_t step) {
  const double* from = s.state + step * s.stride + first;
  double* to = s.state + (step + 1) * s.stride + first;
  double* scratch = s.scratch + first;
  Group before{}, here = Group::load(from), eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes;
    const Group next = Group::load(from + row + lanes);
    eliminated = s.middle[n] * here + s.left[n] * before + s.right[n] * next -
                 Group::load(s.factors + first + row) * eliminated;
    eliminated.store(scratch + row);
    before = here;
    here = next;
  }
  for (int64_t m = 0; m < s.channels; m++) {
    const double* read_out = s.read_out + m * s.size * lanes + first;
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
    (even + odd).store(s.outputs + (step * s.channels + m) * lanes + first);
  }
  Group moved{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    moved = Group::load(scratch + row) *
                Group::load(s.inverses + first + row) -
            Group::load(s.above + first + row) * moved;
    (Group::load(from + row) + moved).store(to + row);
  }
}

void step_lanes(const LaneSteps& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t step = 0; step < s.steps; step++) step_group(s, first, step);
}

INLINE void step_group_backward(const LaneStepsBackward& s, int64_t first,
                                int64_t step) {
  double* scratch = s.scratch + first;
  double* slopes = s.slopes + step * s.size * lanes + first;
  Group slope{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    slope = Group::load(scratch + row) *
                Group::load(s.inverses + first + row) -
            Group::load(s.transposed_above + first + row) * slope;
    slope.store(slopes + row);
  }
  // The cotangent of the state before the step, and the forward half of its
  // solution with M^T.
  const double* d_outputs = s.d_outputs + step * s.channels * lanes + first;
  Group below{}, here = slope, eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes + first;
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
    eliminated.store(scratch + n * lanes);
    below = here;
    here = next;
  }
}

void step_lanes_backward(const LaneStepsBackward& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t step = s.steps - 1; step >= 0; step--)
      step_group_backward(s, first, step);
}

INLINE void add_group(double* to, Group sum) {
  (Group::load(to) + sum).store(to);
}

// One row over all steps, with its sums in registers.
INLINE void add_row_to_bands(const LaneSums& s, int64_t first, int64_t n) {
  const int64_t row = n * lanes + first;
  // Beyond the first and the last row: any finite number, which is ignored.
  const int64_t left = n > 0 ? row - lanes : row;
  const double* states = s.states;
  const double* slopes = s.slopes + row;
  Group before[3]{}, after[3]{};
  Group here[3] = {Group::load(states + left), Group::load(states + row),
                   Group::load(states + row + lanes)};
  for (int64_t step = 0; step < s.steps; step++) {
    const Group slope = Group::load(slopes + step * s.size * lanes);
    states += s.stride;
    const Group next[3] = {Group::load(states + left),
                           Group::load(states + row),
                           Group::load(states + row + lanes)};
    UNROLL for (int band = 0; band < 3; band++) {
      before[band] = before[band] + slope * here[band];
      after[band] = after[band] + slope * next[band];
      here[band] = next[band];
    }
  }
  UNROLL for (int band = 0; band < 3; band++) {
    add_group(s.before[band] + row, before[band]);
    add_group(s.after[band] + row, after[band]);
  }
}

INLINE void add_row_to_read_out(const LaneSums& s, int64_t first, int64_t n) {
  const int64_t row = n * lanes + first;
  for (int64_t m = 0; m < s.channels; m++) {
    Group sum{};
    for (int64_t step = 0; step < s.steps; step++)
      sum = sum +
            Group::load(s.states + step * s.stride + row) *
                Group::load(s.d_outputs + (step * s.channels + m) * lanes +
                            first);
    add_group(s.d_read_out + m * s.size * lanes + row, sum);
  }
}

void add_lanes(const LaneSums& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t n = 0; n < s.size; n++) {
      if (s.slopes) add_row_to_bands(s, first, n);
      add_row_to_read_out(s, first, n);
    }
}

}  // namespace
}  // namespace keras_linrec
