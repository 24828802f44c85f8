// Steps whose lengths differ.
#pragma once
#include "base/lane_kernels-inl.h"
#include "structured/irregular_kernels.h"

namespace keras_linrec {
namespace {

// base - shift * factor
INLINE Group shifted(double base, Group shift, double factor) {
  return {{base - factor * shift.part[0], base - factor * shift.part[1]}};
}

INLINE Group inverse_of(Group a) {
  return {{1.0 / a.part[0], 1.0 / a.part[1]}};
}

INLINE void read_out_group(const IrregularStep& s) {
  const int64_t size = s.system->size;
  const double* state = s.state;
  for (int64_t m = 0; m < s.channels; m++) {
    const double* read_out = s.read_out + m * size * lanes;
    Group even{}, odd{};
    int64_t n = 0;
    for (; n + 1 < size; n += 2) {
      const int64_t row = n * lanes;
      even = even + Group::load(read_out + row) * Group::load(state + row);
      odd = odd + Group::load(read_out + row + lanes) *
                      Group::load(state + row + lanes);
    }
    if (n < size)
      even = even + Group::load(read_out + n * lanes) *
                        Group::load(state + n * lanes);
    (even + odd).store(s.outputs + m * lanes);
  }
}

template <bool keep>
INLINE void irregular_step_group(const IrregularStep& s) {
  const IrregularSystem& system = *s.system;
  const int64_t size = system.size;
  const Group length = Group::load(s.length);
  const Group shift = Group::load(s.shift);
  const Group input = Group::load(s.inputs);
  double* state = s.state;
  double* scratch = s.scratch;
  double* factors = scratch + size * lanes;
  Group before{}, here = Group::load(state), eliminated{};
  Group inverse{}, above{};
  for (int64_t n = 0; n < size; n++) {
    const int64_t row = n * lanes;
    Group next{};
    if (n + 1 < size) next = Group::load(state + row + lanes);
    const Group factor =
        shifted(system.base_left[n], shift, system.left[n]) * inverse;
    inverse = inverse_of(
        shifted(system.base_middle[n], shift, system.middle[n]) -
        factor * above);
    above = shifted(system.base_right[n], shift, system.right[n]);
    eliminated = system.middle[n] * here + system.left[n] * before +
                 system.right[n] * next + system.input[n] * input -
                 factor * eliminated;
    (eliminated * inverse).store(scratch + row);
    (above * inverse).store(factors + row);
    if (keep) inverse.store(s.inverses + row);
    before = here;
    here = next;
  }
  Group solution{};
  for (int64_t n = size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    solution =
        Group::load(scratch + row) - Group::load(factors + row) * solution;
    const Group old = Group::load(state + row);
    (old + length * solution).store(state + row);
    if (!keep) continue;
    solution.store(s.solution + row);
    (old + shift * solution).store(s.between + row);
  }
  read_out_group(s);
}

void irregular_step(const IrregularStep& s) {
  if (s.inverses)
    irregular_step_group<true>(s);
  else
    irregular_step_group<false>(s);
}

INLINE void irregular_group_backward(const IrregularStepBackward& s) {
  const IrregularSystem& system = *s.system;
  const int64_t size = system.size;
  const Group length = Group::load(s.length);
  const Group shift = Group::load(s.shift);
  const double* inverses = s.inverses;
  double* d_state = s.d_state;
  double* scratch = s.scratch;
  double* slopes = s.slopes;
  Group eliminated{}, factor{};
  for (int64_t n = 0; n < size; n++) {
    const int64_t row = n * lanes;
    Group sum = Group::load(d_state + row);
    for (int64_t m = 0; m < s.channels; m++)
      sum = sum + Group::load(s.read_out + (m * size + n) * lanes) *
                      Group::load(s.d_outputs + m * lanes);
    sum.store(d_state + row);
    eliminated = length * sum - factor * eliminated;
    const Group inverse = Group::load(inverses + row);
    (eliminated * inverse).store(scratch + row);
    factor = shifted(system.base_right[n], shift, system.right[n]) * inverse;
  }
  Group slope{}, below{}, next{}, d_inputs{}, d_length{};
  // With the slopes of a row and both its neighbours.
  auto finish = [&](int64_t n, Group above) {
    const int64_t row = n * lanes;
    const Group through = system.middle[n] * slope +
                          s.transposed_left[n] * above +
                          s.transposed_right[n] * next;
    const Group sum = Group::load(d_state + row);
    d_inputs = d_inputs + system.input[n] * slope;
    d_length = d_length + Group::load(s.solution + row) *
                              (sum + s.alpha * through);
    (sum + through).store(d_state + row);
  };
  for (int64_t n = size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    const Group here = Group::load(scratch + row) -
                       below * Group::load(inverses + row) * slope;
    here.store(slopes + row);
    below = shifted(system.base_left[n], shift, system.left[n]);
    if (n + 1 < size) finish(n + 1, here);
    next = slope;
    slope = here;
  }
  finish(0, Group{});
  d_inputs.store(s.d_inputs);
  d_length.store(s.d_length);
}

void irregular_step_backward(const IrregularStepBackward& s) {
  irregular_group_backward(s);
}

// One row over all steps, with its sums in registers.
INLINE void add_irregular_row(const IrregularSums& s, int64_t n) {
  const int64_t row = n * lanes, stride = s.stride;
  // Beyond the first and the last row: any finite number, which is ignored.
  const int64_t left = n > 0 ? row - lanes : row;
  const int64_t right = n + 1 < s.size ? row + lanes : row;
  const int64_t places[3] = {left, row, right};
  Group base[3]{}, step[3]{}, input{};
  for (int64_t t = 0; t < s.steps; t++) {
    const Group slope = Group::load(s.slopes + t * stride + row);
    input = input + slope * Group::load(s.inputs + t * lanes);
    UNROLL for (int band = 0; band < 3; band++) {
      const int64_t place = t * stride + places[band];
      base[band] = base[band] + slope * Group::load(s.solutions + place);
      step[band] = step[band] + slope * Group::load(s.betweens + place);
    }
  }
  UNROLL for (int band = 0; band < 3; band++) {
    add_group(s.base[band] + row, base[band]);
    add_group(s.step[band] + row, step[band]);
  }
  add_group(s.input + row, input);
  for (int64_t m = 0; m < s.channels; m++) {
    Group sum{};
    for (int64_t t = 0; t < s.steps; t++) {
      const Group after = Group::load(s.betweens + t * stride + row) +
                          Group::load(s.rests + t * lanes) *
                              Group::load(s.solutions + t * stride + row);
      sum = sum + after * Group::load(s.d_outputs +
                                      (t * s.channels + m) * lanes);
    }
    add_group(s.d_read_out + m * s.size * lanes + row, sum);
  }
}

void add_irregular(const IrregularSums& s) {
  for (int64_t n = 0; n < s.size; n++) add_irregular_row(s, n);
}

}  // namespace
}  // namespace keras_linrec
