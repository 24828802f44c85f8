// The calls of steps whose lengths differ: see kernels.h and
// structured_scan_irregular.cpp.
#pragma once
#include <cstdint>

#include "base/lane_kernels.h"

namespace keras_linrec {

// `lanes` structured systems side by side, as in lane_kernels.h. A step of the
// length dt is
//
//   state += dt M^-1 (E state + input u),  M = M0 - alpha dt E,
//
// where E, M0 and `input` are the same in all lanes, one number per row.
struct IrregularSystem {
  int64_t size;
  const double* left;  // E by rows
  const double* middle;
  const double* right;
  const double* base_left;  // M0 by rows
  const double* base_middle;
  const double* base_right;
  const double* input;
};

struct IrregularStep {
  const IrregularSystem* system;
  int64_t channels;
  const double* read_out;  // (channels, size) by lanes
  const double* length;    // dt of each lane
  const double* shift;     // alpha dt
  const double* inputs;    // u
  double* state;           // by lanes, in place
  double* outputs;         // (channels, lanes), of the state after the step
  double* scratch;         // two quantities by lanes
  // What the gradient needs, by lanes, or null: the inverses of M's pivots,
  // the solution s = M^-1 (...), and the state before the step plus shift s.
  double* inverses;
  double* solution;
  double* between;
};

// The gradient of a step. The bands `transposed_...` are those of E^T.
struct IrregularStepBackward {
  const IrregularSystem* system;
  const double* transposed_left;
  const double* transposed_right;
  int64_t channels;
  double alpha;
  const double* read_out;
  const double* length;
  const double* shift;
  const double* inverses;
  const double* solution;
  const double* d_outputs;  // (channels, lanes)
  double* d_state;          // by lanes: after the step, then before it
  double* scratch;          // by lanes
  double* slopes;           // by lanes: w = dt M^-T d_state
  double* d_inputs;         // one number a lane
  double* d_length;
};

// Sums of `steps` steps for the gradients, by lanes.
struct IrregularSums {
  int64_t size, steps, channels;
  int64_t stride;  // from one step to the next
  const double* solutions;
  const double* betweens;
  const double* slopes;
  const double* inputs;    // (steps, lanes)
  const double* rests;     // (steps, lanes): (1 - alpha) dt
  const double* d_outputs;  // (steps, channels, lanes)
  double* base[3];  // the bands of slopes solutions^T
  double* step[3];  // the bands of slopes betweens^T
  double* input;    // slopes u
  double* d_read_out;
};

}  // namespace keras_linrec
