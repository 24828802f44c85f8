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
// row of the state. A state, and a slope, has one more row, of zeros.
constexpr int64_t most_lanes = 16;

// M = (I + F) P (I + U), F below the diagonal, U above it, and P the pivots.
struct LaneSystem {
  int64_t size;
  const double* left;      // E: one number per row, the same in all lanes
  const double* middle;
  const double* right;
  const double* factors;   // F, by lanes; 0 in the first row
  const double* inverses;  // of P
  const double* above;     // P U P^-1; 0 in the last row
  double* scratch;         // by lanes
};

struct LaneSteps {
  LaneSystem system;
  int64_t steps, channels;
  const double* read_out;  // (channels, size) by lanes
  double* state;           // by lanes, before the first step
  int64_t stride;          // from a state to the next one; 0 is in place
  double* outputs;         // (steps, channels, lanes), of states before steps
};

// The gradient of these steps. The system has E^T and M^T. The slope of a state
// is M^-T times its cotangent.
struct LaneStepsBackward {
  LaneSystem system;
  int64_t steps, channels;
  const double* read_out;
  const double* d_outputs;
  // (steps) by lanes, what the state before each step has beside; may be null.
  const double* d_states;
  // By lanes, of all states: before the first step, ..., after the last, which
  // is given.
  double* slopes;
  int64_t stride;  // from a slope to the next one
};

// The sums of these steps for the gradients; of the bands, if there are slopes.
struct LaneSums {
  int64_t size, steps, channels;
  const double* states;  // before each step, and after the last
  const double* slopes;  // of the states after each step
  int64_t stride;        // from a state to the next one, or a slope
  const double* d_outputs;
  // The bands of slopes states^T, with the states before and after the steps.
  double* before[3];
  double* after[3];
  double* d_read_out;
};

}  // namespace keras_linrec
