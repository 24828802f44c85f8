// What a scan of rows is told: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Rows of a scan h_t = decay_t * h_{t-1} + inputs_t: `time` rows of `channels`
// numbers. The imaginary parts are null for a real scan. A stride is the way
// from a row to the next; one of 0 reads, or writes, the same row each time. So
// a panel of a tile is such rows too.
//
// The state is kept in float64 whatever `Real` is. It costs nothing where
// memory sets the pace, and in float32 a sum under a decay of 1 - 1e-6 stalls
// 3% short of its limit.
template <class Real>
struct ScanRows {
  int64_t time, channels;
  bool per_step, reverse;
  int64_t decay_stride, input_stride, output_stride;
  const Real* decay[2];
  const Real* inputs[2];
  Real* outputs[2];  // may be `inputs`
  double* state[2];  // before, and after
};

// The gradient of the same rows. `outputs` are those of the forward pass.
template <class Real>
struct ScanRowsBackward {
  int64_t time, channels;
  bool per_step, reverse;  // `reverse`: the direction of the forward pass
  int64_t decay_stride, output_stride, d_output_stride, d_input_stride;
  int64_t d_decay_stride;
  const Real* decay[2];
  const Real* outputs[2];
  const Real* initial[2];
  const Real* d_outputs[2];
  Real* d_inputs[2];       // may be `d_outputs`
  Real* d_decay[2];        // per step
  double* d_decay_sum[2];  // time-invariant: added to
  double* carry[2];        // the cotangent of the last state in, and out that
                           // of the state before the first step
};

}  // namespace keras_linrec
