// The impulse response of structured state-space systems and its gradient: the
// choice between the two algorithms, and the split of features into jobs.
#include <algorithm>

#include "base/arrays.h"
#include "structured/impulse_by_blocks.h"
#include "base/parallel.h"
#include "structured/impulse_by_steps.h"
#include "structured/structured_arguments.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

// The least multiply-adds that pay for another thread.
constexpr double least_work_a_thread = 1 << 20;

// What is computed: the response, the gradients of all arguments, or that of C
// alone.
enum Pass { kResponse, kAllGradients, kReadOutGradient };

// The cost of a feature in blocks, in multiply-adds of a matrix product, of
// which a core with AVX-512 does 50 per nanosecond. A product with few rows
// waits for its sums and takes as long as one with four.
double blocked_work(const Sizes& s, const Blocks& blocks, Pass pass) {
  const double state = s.state, rows = blocks.count * s.channels;
  const double squares = std::max<int64_t>(blocks.powers() - 1, 0);
  const double columns = std::max(blocks.size, kernels<double>().panel);
  const double squaring = squares * state * state * state;
  const double doubling = blocks.size * state * state;
  const double few = 4.0 / std::clamp<int64_t>(s.channels, 1, 4);
  const double stepping =
      (blocks.count > 1 ? few : 0.0) * rows * state * state;
  const double product = rows * columns * state;
  if (pass == kResponse) return squaring + doubling + stepping + product;
  if (pass == kReadOutGradient)
    return squaring + doubling + 2.0 * stepping + product;
  return 3.0 * squaring + 3.0 * doubling + (2.0 + 1.0 / few) * stepping +
         2.0 * product;
}

// The cost of a feature step by step, in the same unit. Measured with AVX2, of
// which a core does 25 multiply-adds per nanosecond: 0.42 ns for each number of
// each state, and 1.8 ns in the backward pass. Idle lanes cost as much as busy
// ones.
double stepped_work(const Sizes& s, Pass pass) {
  const double features = s.features;
  const double lanes = SteppedResponse::width();
  const double idle = std::max(lanes / std::max(features, 1.0), 1.0);
  const double each = pass == kResponse        ? 9.0 + 2.0 * s.channels
                      : pass == kAllGradients ? 42.0 + 4.0 * s.channels
                                              : 9.0 + 4.0 * s.channels;
  return idle * each * s.time * s.state;
}

Blocks best_blocks(const Sizes& s, Pass pass) {
  if (s.block > 0) return Blocks(s.time, s.block);
  Blocks best(s.time, 1);
  for (int64_t size = 2; size < 2 * s.time; size *= 2) {
    const Blocks other(s.time, size);
    if (blocked_work(s, other, pass) < blocked_work(s, best, pass))
      best = other;
  }
  return best;
}

// Calls use(workspace, first feature, count) for groups of as many features as
// a workspace processes at once, on as many threads as the work pays for.
template <class Workspace, class Make, class Use>
void for_each_job(const Sizes& s, double work, Make make, Use use) {
  const int64_t width = Workspace::width();
  const int64_t jobs = (s.features + width - 1) / width;
  const double most = std::min<int64_t>(keras_linrec::threads(), jobs);
  const double threads =
      std::clamp(s.features * work / least_work_a_thread, 1.0, most);
  keras_linrec::for_each_job(
      static_cast<int>(threads), jobs, make,
      [&](Workspace& workspace, int64_t job) {
        const int64_t first = job * width;
        use(workspace, first, std::min(width, s.features - first));
      });
}

// The same, with the workspaces of the faster algorithm.
template <class Use>
void for_each_job(const Sizes& s, const Parameters& parameters, Pass pass,
                  Use use) {
  const bool backward = pass != kResponse;
  const Blocks blocks = best_blocks(s, pass);
  const double in_blocks = blocked_work(s, blocks, pass);
  const double in_steps = stepped_work(s, pass);
  if (s.block < 0 || (s.block == 0 && in_steps < in_blocks))
    for_each_job<SteppedResponse>(
        s, in_steps,
        [&] { return SteppedResponse(s, parameters, backward); }, use);
  else
    for_each_job<BlockedResponse>(
        s, in_blocks,
        [&] { return BlockedResponse(s, blocks, parameters, backward); }, use);
}

template <class Real>
int impulse_response(const Sizes& s, const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, false);
  const StructuredArguments<Real> given(read);
  Real* response = static_cast<Real*>(to[0]);
  const int64_t rows = s.groups * s.features * s.channels;
  if (rows == 0) return kKerasLinrecDone;
  prepare_to_write(response, rows * s.time * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.parameters(s.state, g);
    for_each_job(
        s, parameters, kResponse,
        [&](auto& workspace, int64_t first, int64_t count) {
          const int64_t feature = g * s.features + first;
          const int64_t row = feature * s.channels;
          workspace.forward(given.timescale[0] + feature,
                            given.output_matrix[0] + row * s.state, count,
                            response + row * s.time);
        });
  }
  return kKerasLinrecDone;
}

template <class Real>
int impulse_response_backward(const Sizes& s, const void* const* from,
                              void* const* to) {
  Reader<Real, const void> read(from, false);
  const StructuredArguments<Real> given(read);
  const Real* d_response = read.in()[0];
  Reader<Real, void> write(to, false);
  Out<Real> d_shared[5];
  for (Out<Real>& quantity : d_shared) quantity = write.out();
  const Out<Real> d_timescale = write.out(), d_output_matrix = write.out();
  const bool wants_systems = d_timescale[0];
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.parameters(s.state, g);
    SharedGradients gradients(s.features, s.state);
    if (wants_systems)
      std::fill_n(d_timescale[0] + g * s.features, s.features, Real{0});
    if (s.channels > 0)
      for_each_job(
          s, parameters, wants_systems ? kAllGradients : kReadOutGradient,
          [&](auto& workspace, int64_t first, int64_t count) {
            const int64_t feature = g * s.features + first;
            const int64_t row = feature * s.channels;
            workspace.backward(given.timescale[0] + feature,
                               given.output_matrix[0] + row * s.state,
                               d_response + row * s.time, count,
                               d_timescale.at(feature)[0],
                               d_output_matrix[0] + row * s.state,
                               gradients.at(first));
          });
    if (wants_systems) gradients.give(d_shared, g);
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_impulse_response(int flags, const int64_t* sizes,
                                  const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return impulse_response<decltype(real)>(s, from, to);
  });
}

int keras_linrec_impulse_response_backward(int flags, const int64_t* sizes,
                                           const void* const* from,
                                           void* const* to) {
  using namespace keras_linrec;
  const Sizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return impulse_response_backward<decltype(real)>(s, from, to);
  });
}
