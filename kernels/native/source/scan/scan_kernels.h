// The calls of a scan of rows: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Rows of a scan h_t = decay_t * h_{t-1} + inputs_t: `time` rows of `channels`
// numbers. The imaginary parts are null for a real scan. A stride is the
// distance from a row to the next, as in a panel of a tile; with a stride of 0
// all rows are the same one.
//
// The state is float64 whatever `Real` is. That costs nothing in a scan that is
// bound by memory, and in float32 a sum under a decay of 1 - 1e-6 would stall
// 3% short of its limit. Decays that gates have computed are float64 too, a
// `Factor`; they are real, one for each step.
template <class Real, class Factor = Real>
struct ScanRows {
  int64_t time, channels;
  bool per_step, reverse;
  bool read_ahead;  // the rows are in memory, not in a cache
  bool streamed;    // the outputs are stored past the caches, where they can be
  int64_t decay_stride, input_stride, output_stride;
  const Factor* decay[2];
  const Real* inputs[2];
  Real* outputs[2];  // may be `inputs`
  double* state[2];  // the initial state in, the final state out
};

// The gradient of the same rows. `outputs` are those of the forward pass.
template <class Real, class Factor = Real>
struct ScanRowsBackward {
  int64_t time, channels;
  bool per_step, reverse;  // `reverse`: the direction of the forward pass
  bool read_ahead;
  bool streamed;  // the gradients of every step
  int64_t decay_stride, output_stride, d_output_stride, d_input_stride;
  int64_t d_decay_stride;
  const Factor* decay[2];
  const Real* outputs[2];
  const Real* initial[2];
  const Real* d_outputs[2];
  Real* d_inputs[2];       // may be `d_outputs`
  Real* d_decay[2];        // per step
  double* d_decay_sum[2];  // time-invariant: accumulated
  double* carry[2];        // the cotangent of the last state in, that of the
                           // state before the first step out
};

}  // namespace keras_linrec
