// A scan and its gradient, cut into jobs for the threads.
//
// Where the decays and inputs of its rows come from is a `source`. It has
//
//   Factor                     the type of its decays
//   Workspace, workspace(job)  memory for a job
//   run(steps, is_reset, workspace, rows)
//                              runs the steps, with all in `rows` but decays
//                              and inputs. At a reset the decay is zero
//   run_backward(steps, is_reset, keep, workspace, rows)
//                              the same of their gradient, for its results or,
//                              unless `keep`, for the carry alone
//   finish(job, place, workspace)
//                              takes what a job has summed; `place` numbers the
//                              states of all parts
//   product(job, workspace, to)
//                              the product of the decays of a job's steps
#pragma once
#include <algorithm>
#include <complex>
#include <functional>
#include <vector>

#include "base/arrays.h"
#include "base/parallel.h"
#include "base/resets.h"

namespace keras_linrec {
namespace scans {

// A smaller call finishes before a second thread has woken up.
constexpr int64_t least_numbers_a_thread = 1 << 15;
// Channels are divided among threads in whole cache lines.
constexpr int64_t channels_a_line = 16;
// Time is divided only if the parts are long enough to pay for reading the
// inputs twice.
constexpr int64_t least_steps_a_part = 1 << 12;

// Larger results bypass the cache:
//
//   results    streamed              through the cache
//   67 MB      3.2 ms, gradient 5.3  5.4 ms, gradient 7.9
//   13 MB      the same              the same (half of a cache)
//    4 MB      their reader waits three times as long
constexpr int64_t streamed_bytes = 1 << 24;

struct Sizes {
  int64_t groups, batch, time, channels;
  bool complex, per_step, reverse, resets;
  Sizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        channels(sizes[3]),
        complex(flags & kKerasLinrecComplex),
        per_step(flags & kKerasLinrecPerStep),
        reverse(flags & kKerasLinrecReverse),
        resets(flags & kKerasLinrecResets) {}
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 0 && channels >= 0;
  }
  int64_t rows() const { return groups * batch; }
  int64_t numbers() const { return rows() * time * channels; }
  template <class Real>
  bool streamed() const {
    return numbers() * static_cast<int64_t>(sizeof(Real)) > streamed_bytes;
  }
};

// How a call is cut into jobs: as many whole rows for each thread; then, for
// what is left, the channels into `splits`; and time into `parts` if there are
// still too few jobs. A scan of half of 256 channels takes 60% of the time.
//
// Splits do not change the numbers. Parts do, by the rounding of float64.
struct Plan {
  int64_t threads, whole, splits, width, parts, steps;
  explicit Plan(const Sizes& s) {
    threads = std::clamp<int64_t>(s.numbers() / least_numbers_a_thread, 1,
                                  keras_linrec::threads());
    whole = s.rows() / threads * threads;
    const int64_t rows = std::max<int64_t>(s.rows() - whole, 1);
    const int64_t lines = (s.channels + channels_a_line - 1) / channels_a_line;
    splits = std::min(lines, (threads + rows - 1) / rows);
    width = (lines + splits - 1) / splits * channels_a_line;
    splits = (s.channels + width - 1) / width;
    parts = std::clamp<int64_t>(
        s.time / least_steps_a_part, 1,
        whole ? 1 : std::max<int64_t>(threads / (rows * splits), 1));
    steps = (s.time + parts - 1) / parts;
    parts = (s.time + steps - 1) / steps;
  }
  int64_t jobs(const Sizes& s) const {
    return whole + (s.rows() - whole) * splits * parts;
  }
};

// One job: a share of a row's channels, for one part of the time.
struct Job {
  int64_t row, group, channel, width, part, first, time;
  Job(const Sizes& s, const Plan& plan, int64_t index) {
    const int64_t rest = std::max<int64_t>(index - plan.whole, 0);
    const int64_t split = rest / plan.parts % plan.splits;
    part = rest % plan.parts;
    row = std::min(index, plan.whole) + rest / plan.parts / plan.splits;
    group = row / s.batch;
    channel = split * plan.width;
    width = index < plan.whole ? s.channels
                               : std::min(plan.width, s.channels - channel);
    // Parts are counted in the order of the scan.
    const int64_t taken = part * plan.steps;
    time = std::min(plan.steps, s.time - taken);
    first = s.reverse ? s.time - taken - time : taken;
  }
  int64_t at(const Sizes& s, int64_t step) const {
    return (row * s.time + step) * s.channels + channel;
  }
  int64_t state_at(const Sizes& s) const { return row * s.channels + channel; }
  Job with_steps(int64_t first, int64_t time) const {
    Job some = *this;
    some.first = first;
    some.time = time;
    return some;
  }
};

// The resets of a row.
template <class Real>
Resets<Real> resets_of(const Sizes& s, const Real* resets, int64_t row) {
  return {s.resets ? resets + row * s.time : nullptr};
}

inline void for_each_job(const Sizes& s, const Plan& plan,
                         const std::function<void(const Job&)>& run) {
  const int64_t jobs = plan.jobs(s);
  keras_linrec::for_each_job(
      static_cast<int>(std::min(plan.threads, jobs)), jobs,
      [&](int, int64_t job) { run(Job(s, plan, job)); });
}

// float64 numbers, one for each channel, or two if complex.
struct State {
  std::vector<double> part[2];
  State(int64_t channels, bool complex) {
    for (int p = 0; p <= complex; p++) part[p].assign(channels, 0.0);
  }
  Out<double> at(int64_t element) {
    Out<double> parts;
    for (int p = 0; p < 2; p++)
      if (!part[p].empty()) parts.part[p] = part[p].data() + element;
    return parts;
  }
};

template <class Real>
void widen(const In<Real>& from, const Out<double>& to, int64_t count) {
  for (int p = 0; p < 2; p++)
    if (to[p]) std::copy(from[p], from[p] + count, to[p]);
}

template <class Real>
void narrow(const Out<double>& from, const Out<Real>& to, int64_t count) {
  for (int p = 0; p < 2; p++)
    if (to[p])
      for (int64_t i = 0; i < count; i++)
        to[p][i] = static_cast<Real>(from[p][i]);
}

// state = product * before + state, or with the product's conjugate
inline void carry_state(const Out<double>& product, const Out<double>& before,
                        const Out<double>& state, bool conjugate,
                        int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    // A zero state stays zero even if the product of decays overflows.
    if (before[0][i] == 0.0 && (!before[1] || before[1][i] == 0.0)) continue;
    if (!state[1]) {
      state[0][i] += product[0][i] * before[0][i];
      continue;
    }
    std::complex<double> factor(product[0][i], product[1][i]);
    if (conjugate) factor = std::conj(factor);
    const std::complex<double> moved =
        factor * std::complex<double>(before[0][i], before[1][i]);
    state[0][i] += moved.real();
    state[1][i] += moved.imag();
  }
}

// Carries states through a part of the time, except where it has a reset.
template <class Real>
void carry_states(const Sizes& s, const Plan& plan, const Real* resets,
                  int64_t part, const Out<double>& products,
                  const Out<double>& before, const Out<double>& states,
                  bool conjugate) {
  for (int64_t row = 0; row < s.rows(); row++) {
    const Job job(s, plan, row * plan.splits * plan.parts + part);
    if (resets_of(s, resets, row).any(job.first, job.time)) continue;
    const int64_t at = row * s.channels;
    carry_state(products.at(at), before.at(at), states.at(at), conjugate,
                s.channels);
  }
}

// The outputs and the final state.
template <class Real, class Source>
void run_scan(const Sizes& s, const Source& source, const Real* resets,
              const In<Real>& initial, const Out<Real>& outputs,
              const Out<Real>& final_state, bool streamed) {
  const Plan plan(s);
  const int64_t states = s.rows() * s.channels;
  // The state that enters each part, and the final state after the last one.
  State entering(states * (plan.parts + 1), s.complex);
  widen(initial, entering.at(0), states);

  auto run = [&](const Job& job, const Out<double>& state, Out<Real> results,
                 int64_t output_stride,
                 typename Source::Workspace& workspace) {
    const auto run = [&](int64_t first, int64_t time, bool is_reset) {
      ScanRows<Real, typename Source::Factor> rows{};
      rows.time = time;
      rows.channels = job.width;
      rows.reverse = s.reverse;
      rows.output_stride = output_stride;
      rows.streamed = output_stride && streamed;
      for (int p = 0; p <= s.complex; p++) {
        rows.outputs[p] = results[p] + (first - job.first) * output_stride;
        rows.state[p] = state[p];
        if (is_reset) std::fill_n(state[p], job.width, 0.0);
      }
      source.run(job.with_steps(first, time), is_reset, workspace, rows);
    };
    resets_of(s, resets, job.row)
        .for_each_run(job.first, job.time, s.reverse, run);
  };

  if (plan.parts > 1) {
    // First every part runs from zero, for its last state alone. Then these are
    // carried from part to part, and every part runs from the right state.
    State products(states * plan.parts, s.complex);
    for_each_job(s, plan, [&](const Job& job) {
      const int64_t here = job.part * states + job.state_at(s);
      State state(job.width, s.complex);
      std::vector<Real> dropped(job.width);
      Out<Real> results;
      for (int p = 0; p <= s.complex; p++) results.part[p] = dropped.data();
      if (job.part == plan.parts - 1) return;
      auto workspace = source.workspace(job);
      run(job, state.at(0), results, 0, workspace);
      for (int p = 0; p <= s.complex; p++)
        std::copy(state.part[p].begin(), state.part[p].end(),
                  entering.at(here + states)[p]);
      source.product(job, workspace, products.at(here));
    });
    for (int64_t part = 0; part + 1 < plan.parts; part++)
      carry_states(s, plan, resets, part, products.at(part * states),
                   entering.at(part * states),
                   entering.at((part + 1) * states), false);
  }
  for_each_job(s, plan, [&](const Job& job) {
    State state(job.width, s.complex);
    const int64_t here = job.part * states + job.state_at(s);
    for (int p = 0; p <= s.complex; p++)
      std::copy_n(entering.at(here)[p], job.width, state.part[p].begin());
    auto workspace = source.workspace(job);
    run(job, state.at(0), outputs.at(job.at(s, job.first)), s.channels,
        workspace);
    if (job.part == plan.parts - 1)
      narrow(state.at(0), final_state.at(job.state_at(s)), job.width);
  });
}

// The states of all parts.
inline int64_t places(const Sizes& s) {
  return s.rows() * s.channels * Plan(s).parts;
}

// For each channel of each group, the sum of float64 numbers at all places:
// added in a fixed order, so that two runs give the same sum. `stride` is the
// distance from a group's sums to the next.
template <class Real>
void add_places(const Sizes& s, const double* numbers, Real* to,
                int64_t stride) {
  const int64_t states = s.rows() * s.channels, parts = Plan(s).parts;
  for (int64_t g = 0; g < s.groups; g++)
    for (int64_t c = 0; c < s.channels; c++) {
      double sum = 0.0;
      for (int64_t part = 0; part < parts; part++)
        for (int64_t b = 0; b < s.batch; b++)
          sum += numbers[part * states + (g * s.batch + b) * s.channels + c];
      to[g * stride + c] = static_cast<Real>(sum);
    }
}

// The gradient: of the initial state here, the others in the source.
template <class Real, class Source>
void run_scan_backward(const Sizes& s, const Source& source,
                       const Real* resets, const In<Real>& initial,
                       const In<Real>& outputs, const In<Real>& d_outputs,
                       const In<Real>& d_final, const Out<Real>& d_initial) {
  const Plan plan(s);
  const int64_t states = s.rows() * s.channels;
  // The cotangent that enters each part from its end.
  State entering(states * plan.parts, s.complex);
  widen(d_final, entering.at((plan.parts - 1) * states), states);

  const std::vector<Real> zeros(plan.parts > 1 || s.resets ? s.channels : 0);
  // Runs a job, for its results or for the carry alone.
  auto run_back = [&](const Job& job, const Out<double>& carry, bool keep,
                      typename Source::Workspace& workspace) {
    const auto run = [&](int64_t first, int64_t time, bool is_reset) {
      const Job steps = job.with_steps(first, time);
      const int64_t here = steps.at(s, first);
      ScanRowsBackward<Real, typename Source::Factor> rows{};
      rows.time = time;
      rows.channels = job.width;
      rows.per_step = s.per_step;
      rows.reverse = s.reverse;
      rows.read_ahead = true;
      rows.d_output_stride = s.channels;
      rows.output_stride = keep ? s.channels : 0;
      assign(d_outputs.at(here), rows.d_outputs);
      assign(carry, rows.carry);
      if (keep) {
        assign(outputs.at(here), rows.outputs);
        // The state before: that of the previous step, or the initial one.
        const int64_t before = s.reverse ? first + time : first - 1;
        assign(before < 0 || before == s.time ? initial.at(job.state_at(s))
                                              : outputs.at(job.at(s, before)),
               rows.initial);
      }
      for (int p = 0; p <= s.complex; p++) {
        if (!keep) rows.outputs[p] = zeros.data();
        if (!keep || is_reset) rows.initial[p] = zeros.data();
      }
      source.run_backward(steps, is_reset, keep, workspace, rows);
      for (int p = 0; is_reset && p <= s.complex; p++)
        std::fill_n(rows.carry[p], job.width, 0.0);
    };
    resets_of(s, resets, job.row)
        .for_each_run(job.first, job.time, !s.reverse, run);
  };

  if (plan.parts > 1) {
    State products(states * plan.parts, s.complex);
    for_each_job(s, plan, [&](const Job& job) {
      if (job.part == 0) return;
      const int64_t here = job.part * states + job.state_at(s);
      State carry(job.width, s.complex);
      auto workspace = source.workspace(job);
      run_back(job, carry.at(0), false, workspace);
      for (int p = 0; p <= s.complex; p++)
        std::copy(carry.part[p].begin(), carry.part[p].end(),
                  entering.at(here - states)[p]);
      source.product(job, workspace, products.at(here));
    });
    for (int64_t part = plan.parts - 1; part > 0; part--)
      carry_states(s, plan, resets, part, products.at(part * states),
                   entering.at(part * states),
                   entering.at((part - 1) * states), true);
  }
  for_each_job(s, plan, [&](const Job& job) {
    const int64_t here = job.part * states + job.state_at(s);
    State carry(job.width, s.complex);
    for (int p = 0; p <= s.complex; p++)
      std::copy_n(entering.at(here)[p], job.width, carry.part[p].begin());
    auto workspace = source.workspace(job);
    run_back(job, carry.at(0), true, workspace);
    source.finish(job, here, workspace);
    if (job.part == 0)
      narrow(carry.at(0), d_initial.at(job.state_at(s)), job.width);
  });
}

}  // namespace scans
}  // namespace keras_linrec
