// Steps of structured systems.
#pragma once
#include "base/lane_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// The lanes are a pair of vectors, whose sums overlap in time. With more lanes,
// a row would take several lines of the cache, of which each pass reads one:
// these fall into a half of its sets. For a response of 64 features and its
// gradient at (1000, 64), these loops took 24.6 ms of a core with AVX2 with
// sixteen lanes, and 16.0 with eight; today they take 9.2.
typedef Pair<double> Group;
constexpr int64_t lanes = 2 * Group::width;

// The calls below copy their arguments: a store could change a struct that the
// compiler sees through a reference, and each row would read its pointers anew.

// scratch = (I + F)^-1 (E from + added(row))
template <class Added>
INLINE void eliminate(const LaneSystem& s, const double* from,
                      const Added& added) {
  Group before{}, here = Group::load(from), eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes;
    const Group next = Group::load(from + row + lanes);
    const Group moved =
        s.middle[n] * here + s.left[n] * before + s.right[n] * next;
    eliminated =
        added(moved, row) - Group::load(s.factors + row) * eliminated;
    eliminated.store(s.scratch + row);
    before = here;
    here = next;
  }
}

// to = from + (P (I + U))^-1 scratch, and calls use(from's row, row).
template <class Use>
INLINE void substitute(const LaneSystem& s, const double* from, double* to,
                       const Use& use) {
  Group moved{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    moved =
        Group::load(s.scratch + row) - Group::load(s.above + row) * moved;
    const Group before = Group::load(from + row);
    use(before, row);
    (before + Group::load(s.inverses + row) * moved).store(to + row);
  }
}

INLINE Group read_state(const double* read_out, const double* state,
                        int64_t size) {
  Group sum{};
  for (int64_t row = 0; row < size * lanes; row += lanes)
    sum = sum + Group::load(read_out + row) * Group::load(state + row);
  return sum;
}

void step_lanes(const LaneSteps& given) {
  const LaneSteps s = given;
  const LaneSystem system = s.system;
  const auto nothing = [](const Group& moved, int64_t) { return moved; };
  const auto ignore = [](const Group&, int64_t) {};
  for (int64_t step = 0; step < s.steps; step++) {
    const double* from = s.state + step * s.stride;
    double* to = s.state + (step + 1) * s.stride;
    eliminate(system, from, nothing);
    if (s.channels == 0) {
      substitute(system, from, to, ignore);
      continue;
    }
    double* outputs = s.outputs + step * s.channels * lanes;
    for (int64_t m = 1; m < s.channels; m++)
      read_state(s.read_out + m * s.system.size * lanes, from, s.system.size)
          .store(outputs + m * lanes);
    // The first channel, by what is read anyway.
    Group output{};
    substitute(system, from, to, [&](const Group& state, int64_t row) {
      output = output + Group::load(s.read_out + row) * state;
    });
    output.store(outputs);
  }
}

void step_lanes_backward(const LaneStepsBackward& given) {
  const LaneStepsBackward s = given;
  const LaneSystem system = s.system;
  const int64_t size = system.size * lanes;
  for (int64_t step = s.steps - 1; step >= 0; step--) {
    const double* from = s.slopes + (step + 1) * s.stride;
    const double* d_outputs = s.d_outputs + step * s.channels * lanes;
    const double* d_states = s.d_states ? s.d_states + step * size : nullptr;
    const bool any = s.channels > 0;
    const Group first = any ? Group::load(d_outputs) : Group{};
    // What the state before the step has in its cotangent beside that of the
    // state after it.
    eliminate(system, from, [&](Group moved, int64_t row) {
      if (any) moved = moved + Group::load(s.read_out + row) * first;
      for (int64_t m = 1; m < s.channels; m++)
        moved = moved + Group::load(s.read_out + m * size + row) *
                            Group::load(d_outputs + m * lanes);
      if (d_states) moved = moved + Group::load(d_states + row);
      return moved;
    });
    substitute(system, from, s.slopes + step * s.stride,
               [](const Group&, int64_t) {});
  }
}

INLINE void add_group(double* to, Group sum) {
  (Group::load(to) + sum).store(to);
}

INLINE void add_vector(double* to, Doubles sum) {
  store_doubles(to, load_doubles(to) + sum);
}

// One row of some steps, with its sums in registers, which those of two vectors
// would not fit into.
INLINE void add_row_to_bands(const LaneSums& s, int64_t row, int64_t first,
                             int64_t last) {
  // Beyond the first and the last row: any finite number, which is ignored.
  const int64_t left = row >= lanes ? row - lanes : row;
  const double* states = s.states + first * s.stride;
  const double* slopes = s.slopes + first * s.stride + row;
  const double* d_outputs =
      s.d_outputs + first * s.channels * lanes + row % lanes;
  const int64_t next_outputs = s.channels * lanes;
  const bool any = s.channels > 0;
  Doubles before[3]{}, after[3]{}, slope{}, d_read_out{};
  Doubles state[3] = {load_doubles(states + left), load_doubles(states + row),
                      load_doubles(states + row + lanes)};
  // The state after a step is the one before the next.
  for (int64_t step = first; step < last; step++) {
    slope = load_doubles(slopes);
    UNROLL for (int band = 0; band < 3; band++)
      before[band] += slope * state[band];
    if (any) d_read_out += state[1] * load_doubles(d_outputs);
    states += s.stride;
    slopes += s.stride;
    d_outputs += next_outputs;
    state[0] = load_doubles(states + left);
    state[1] = load_doubles(states + row);
    state[2] = load_doubles(states + row + lanes);
    UNROLL for (int band = 0; band < 3; band++)
      after[band] += slope * state[band];
  }
  UNROLL for (int band = 0; band < 3; band++) {
    add_vector(s.before[band] + row, before[band]);
    add_vector(s.after[band] + row, after[band]);
  }
  if (any) add_vector(s.d_read_out + row, d_read_out);
}

INLINE void add_row_to_read_out(const LaneSums& s, int64_t m, int64_t row) {
  const double* d_outputs = s.d_outputs + m * lanes;
  Group sum{};
  for (int64_t step = 0; step < s.steps; step++)
    sum = sum + Group::load(s.states + step * s.stride + row) *
                    Group::load(d_outputs + step * s.channels * lanes);
  add_group(s.d_read_out + m * s.size * lanes + row, sum);
}

void add_lanes(const LaneSums& given) {
  const LaneSums s = given;
  const int64_t rows = s.size * lanes;
  for (int64_t m = s.slopes ? 1 : 0; m < s.channels; m++)
    for (int64_t row = 0; row < rows; row += lanes)
      add_row_to_read_out(s, m, row);
  if (!s.slopes) return;
  // A row's states and slopes of one step lie in other pages than those of the
  // next one, of which processors know 64 at once.
  constexpr int64_t at_once = 16;
  for (int64_t first = 0; first < s.steps; first += at_once) {
    const int64_t end = first + at_once;
    const int64_t last = end < s.steps ? end : s.steps;
    for (int64_t row = 0; row < rows; row += Group::width)
      add_row_to_bands(s, row, first, last);
  }
}

}  // namespace
}  // namespace keras_linrec
