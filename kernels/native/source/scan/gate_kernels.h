// The calls of the gates of a scan: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Rows of a gated scan's drive, and what its gates make of them. The drive is
// two or three numbers for each channel, to which biases are added:
//
//   k, v       share = sigmoid(k); with `two_gates` there are f, k, v, and
//              share = sigmoid(k) / (sigmoid(k) + sigmoid(f)):
//              decay = 1 - share, entering = share g(v)
//   r, k       with `rates`: decay = exp(largest_rate sigmoid(r)), entering =
//              sqrt(1 - decay^2) sigmoid(k) input
//
// g is the identity or, if `positive`, v + 1/2 above 0 and sigmoid(v) below. A
// rate is not above 0.
template <class Real>
struct GateRows {
  int64_t rows, channels;
  bool two_gates, rates, positive;
  int64_t drive_stride, input_stride;
  // From a row to the one of the next block, which is asked for meanwhile.
  int64_t rows_ahead;
  const Real* drive[3];
  const Real* bias[3];
  const Real* inputs;        // with rates
  const Real* largest_rate;  // likewise
};

// The arrays of both calls that are float64 or have `stride` are scratch: rows
// and sums of whole vectors.
//
// Decays are float64 whatever `Real` is: those near 1 are computed from their
// distance to 1, of which float32 would keep few digits.
template <class Real>
struct OpenGates : GateRows<Real> {
  int64_t stride;
  double* decay;
  Real* entering;  // null if only the gradient needs the gates
  // What it needs of them, if not null: planes of rows.
  Real* kept;
  int64_t plane;
};

template <class Real>
struct CloseGates : GateRows<Real> {
  bool streamed;  // results bypass the caches, where they can
  int64_t stride;
  const double* decay;
  const Real* kept;
  int64_t plane;
  const Real* d_decay;
  const Real* d_entering;
  Real* d_drive[3];  // with the strides of what they belong to
  Real* d_inputs;
  Real* d_bias[3];  // accumulated, as the next
  Real* d_largest_rate;
};

}  // namespace keras_linrec
