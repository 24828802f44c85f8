// What the steps of structured systems are told: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Structured systems step by step, so many side by side, in float64:
//
//   state += M^-1 E state,
//
// M and E tridiagonal. A quantity `by lanes` has that many numbers for each
// row of the state. A state has a row more than `size`, of zeros.
constexpr int64_t lanes = 16;

struct LaneSteps {
  int64_t size, steps, channels;
  const double* left;      // E: a number for each row, the same in all lanes
  const double* middle;
  const double* right;
  const double* factors;   // M's elimination, by lanes; of the first row, 0
  const double* inverses;
  const double* above;     // over the pivot; of the last row, 0
  const double* read_out;  // (channels, size) by lanes
  double* state;           // by lanes, before the first step
  int64_t stride;          // from there to the state after it; 0 is in place
  double* outputs;         // (steps, channels, lanes), of states before steps
  double* scratch;         // by lanes
};

// The gradient of the same steps. What begins with `transposed` is of E^T or
// of M^T.
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
  double* d_state;  // by lanes: after the last step, then before the first
  double* scratch;  // by lanes, its elimination so far: of zero, it is zero
  double* slopes;   // (steps) by lanes: M^-T d_state of the state after a step
};

// What the same steps add to gradients.
struct LaneSums {
  int64_t size, steps, channels;
  const double* states;  // before each step, and after the last
  int64_t stride;
  const double* slopes;
  const double* d_outputs;
  // The bands of slopes states^T, with the states before steps, and after.
  double* before[3];
  double* after[3];
  double* d_read_out;
};

}  // namespace keras_linrec
