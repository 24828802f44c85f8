// Activations, and their calls in nonlinear recurrences: see kernels.h.
#pragma once
#include <cstdint>

namespace keras_linrec {

// For the activations of pairs, the first half of a panel's columns holds the
// first numbers of the pairs and the second half the second ones.
enum Activation {
  kLinear,
  kRelu,
  kLeakyRelu,
  kTanh,
  kSigmoid,
  kOplu,     // pairs: the larger number, then the smaller
  kModrelu,  // pairs: real and imaginary part
  kGelu,     // x times the normal distribution's share below x
  kActivations,
};

// Static: each instruction set has a copy of its own, see kernels.h.
static inline constexpr bool is_of_pairs(int activation) {
  return activation == kOplu || activation == kModrelu;
}

// response = activation(argument + bias), or, with the optional parts,
//   gate = sigmoid(gate + gate_bias + product),
//   response = gate * (linear + activation(argument + bias + product)),
// on `rows` rows of a panel. Null pointers leave out optional parts.
template <class Real>
struct Respond {
  int64_t rows;
  Activation activation;
  Real leak;                 // of kLeakyRelu
  const Real* modulus_bias;  // of kModrelu: half a panel's width
  const Real* bias;       // one number per column
  const Real* gate_bias;
  const Real* product;
  const Real* argument;
  const Real* linear;
  Real* gate;
  Real* change;    // linear + activation(argument); only if there is a gate
  Real* response;  // may be `argument`, or null if only `memory` is needed
  Real* memory;    // for the gradient; may be `argument`, or null
};

template <class Real>
struct RespondBackward {
  int64_t rows;
  Activation activation;
  Real leak;
  const Real* modulus_bias;
  const Real* memory;
  const Real* gate;
  const Real* change;
  const Real* d_response;
  Real* d_argument;
  Real* d_gate;    // of the gate's argument
  Real* d_linear;
  Real* d_modulus_bias;  // accumulated
};

}  // namespace keras_linrec
