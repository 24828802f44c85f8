// The calls of steps of structured systems: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// `lanes` structured systems side by side, as many as an instruction set has
// (kernels.h), take steps in float64:
//
//   state += M^-1 E state,
//
// M and E tridiagonal. A quantity `by lanes` has that many numbers for each
// row of the state. A state has one more row than `size`, of zeros.
constexpr int64_t most_lanes = 16;

struct LaneSteps {
  int64_t size, steps, channels;
  const double* left;      // E: one number per row, the same in all lanes
  const double* middle;
  const double* right;
  const double* factors;   // M's elimination, by lanes; 0 in the first row
  const double* inverses;
  const double* above;     // divided by the pivot; 0 in the last row
  const double* read_out;  // (channels, size) by lanes
  double* state;           // by lanes, before the first step
  int64_t stride;          // from a state to the next one; 0 is in place
  double* outputs;         // (steps, channels, lanes), of states before steps
  double* scratch;         // by lanes
};

// The gradient of these steps. `transposed_...` belong to E^T or M^T.
struct LaneStepsBackward {
  int64_t size, steps, channels;
  const double* transposed_left;
  const double* transposed_middle;
  const double* transposed_right;
  const double* transposed_factors;
  const double* inverses;
  const double* transposed_above;
  const double* read_out;
  const double* d_outputs;
  // (steps) by lanes, what the state before each step has beside; may be null.
  const double* d_states;
  double* d_state;  // by lanes: after the last step, then before the first
  double* scratch;  // by lanes: d_state after forward elimination; 0 for 0
  double* slopes;   // (steps) by lanes: M^-T d_state of the state after a step
};

// The sums of these steps for the gradients; of the bands, if there are slopes.
struct LaneSums {
  int64_t size, steps, channels;
  const double* states;  // before each step, and after the last
  int64_t stride;
  const double* slopes;
  const double* d_outputs;
  // The bands of slopes states^T, with the states before and after the steps.
  double* before[3];
  double* after[3];
  double* d_read_out;
};

}  // namespace keras_linrec
