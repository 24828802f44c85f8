// The calls of diagonal systems whose steps differ in length: see kernels.h and
// diagonal_scan_irregular.cpp.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Features side by side, each a system of its own.
constexpr int64_t features_at_once = 8;

// Systems z' = lambda z + e of `size` complex numbers a feature. Arrays `by
// features` have `features_at_once` numbers for each row.
struct DiagonalSystem {
  int64_t size, channels;
  int drives;     // the parts of e: 1 if it is real
  bool bilinear;  // else steps hold e constant
  const double* eigenvalue[2];  // lambda, (size) by features
  const double* inverse[2];     // 1 / lambda, or 0 where lambda is 0
  const double* read_out[2];    // (channels, size) by features
};

// Some steps. Those of which `drops` is true begin from zeros.
struct DiagonalSteps {
  const DiagonalSystem* system;
  int64_t steps;
  const double* lengths;  // (steps,)
  const bool* drops;      // (steps,)
  const double* inputs;   // (steps, drives) by features
  double* state[2];       // (size) by features, in place
  double* outputs;        // (steps, channels) by features
};

// Their gradient. The cotangents of the system and of inputs and lengths are
// added to what is there.
struct DiagonalStepsBackward {
  const DiagonalSystem* system;
  int64_t steps;
  const double* lengths;
  const bool* drops;
  const double* inputs;
  const double* state[2];   // before the first step
  const double* d_outputs;  // (steps, channels) by features
  double* d_state[2];       // after the last step, then before the first
  double* d_inputs;
  double* d_lengths;        // (steps) by features
  double* d_eigenvalue[2];
  double* d_read_out[2];
  double* scratch;          // (numbers_a_step * steps) by features
};
// The states after a step, and two complex factors.
constexpr int64_t numbers_a_step = 6;

}  // namespace keras_linrec
