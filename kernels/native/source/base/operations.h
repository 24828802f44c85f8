// The operations of the core: one table, which the adapters of all frameworks
// and Python read. An operation's own file has what it computes; here stand its
// arguments and results, from which everything that a call needs follows: the
// checks, the core's sizes, the rows of a batch, and, by name, the wiring of
// gradients.
//
// `x_backward` is the gradient of `x`. Its arguments are arguments and results
// of `x`, and cotangents of the results: `d_outputs` is that of `outputs`. Its
// results are the cotangents of those arguments of `x` that have one. A result
// of `x` without a cotangent here is for the gradient alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/core.h"
#include "cuda/cuda_core.h"

namespace keras_linrec {

typedef int (*Core)(int, const int64_t*, const void* const*, void* const*);
typedef int (*CudaCore)(int, const int64_t*, const void* const*, void* const*,
                        void*, void*);
typedef int64_t (*Scratch)(int, const int64_t*);

// Axes are letters: Batch, Time, Features, Channels, Units, blocKs of time,
// Lags of a response, Parts, the Numbers of a state, Stages of a solver; `z` is
// the time or 0, and a digit is itself. Matrix states have Heads, `i` key
// channels and Value channels. Other letters are sizes specific to an
// operation.
struct Quantity {
  std::string name, axes;
  // One tensor, even if the others are complex and have two parts.
  bool real = false;
  // For a result: the argument that it may overwrite.
  std::string reuses = "";
  // With these axes instead, unless the call has the flag.
  int flag = 0;
  std::string otherwise = "";

  int parts(int64_t flags) const {
    return !real && flags & kKerasLinrecComplex ? 2 : 1;
  }
  const std::string& letters(int64_t flags) const {
    return !flag || flags & flag ? axes : otherwise;
  }
};

typedef std::vector<Quantity> Quantities;

inline Quantities operator+(Quantities first, const Quantities& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline Quantities cotangents_of(Quantities quantities) {
  for (Quantity& quantity : quantities) quantity.name = "d_" + quantity.name;
  return quantities;
}

// The numbers that a call has beside its flags and arrays, in this order.
struct Attribute {
  int bit;
  const char* name;
};
constexpr int has_time = 1, has_block = 2, has_alpha = 4, has_leak = 8,
              has_keep = 16;
constexpr Attribute all_attributes[] = {
    {has_time, "time"},
    {has_block, "block"},  // steps from one checkpoint to the next
    // The bits of a double, as the next: a `float` of TensorFlow has only 32.
    {has_alpha, "alpha"},
    {has_leak, "leak"},
    {has_keep, "keep"},  // whether all steps are wanted, or only the last
};

// What the flags of a call (core.h) may say of its arrays.
enum class Kind {
  kReal,       // nothing: they are real
  kComplex,    // that they are complex, as those of linear scans
  kGated,      // how many numbers drive a channel
  kNonlinear,  // the sizes of a nonlinear scan's
};

struct Operation {
  std::string name;
  Kind kind;
  // What runs on CPUs and on NVIDIA GPUs, or null.
  Core core;
  CudaCore cuda;
  // The bytes of memory on the GPU that the latter needs. Null for none.
  Scratch scratch;
  // The core's sizes after the number of groups. Attributes follow them.
  std::string sizes;
  int attributes;
  Quantities from, to;
  // For a gradient that need not compute all: a letter a result. Results of
  // one letter are computed together, and those of `*` always.
  std::string wanted = "";

  bool has(int attribute) const { return attributes & attribute; }

  // The index of an argument's first tensor.
  int argument(const std::string& quantity, int64_t flags) const {
    int tensor = 0;
    for (const Quantity& one : from) {
      if (one.name == quantity) break;
      tensor += one.parts(flags);
    }
    return tensor;
  }
};

// Arguments that several operations have.
inline const Quantity decay = {
    "decay", "btc", false, "", kKerasLinrecPerStep, "c"};
inline const Quantity resets = {
    "resets", "bt", true, "", kKerasLinrecResets, "00"};
inline const Quantity initial_state = {"initial_state", "bc"};
inline const Quantities gated_operands = {
    {"drive", "btg"},
    {"bias", "g"},
    {"inputs", "btc", false, "", kKerasLinrecRates, "00"},
    {"largest_rate", "c", false, "", kKerasLinrecRates, "00"}};
inline const Quantities projected_operands = {decay,
                                              {"inputs", "btf", true},
                                              {"input_kernel", "fc"},
                                              {"output_kernel", "cu"}};
inline const Quantities structured_system = {
    {"p", "n"}, {"d", "n"},         {"q", "n"},          {"t", "3n"},
    {"b", "n"}, {"timescale", "f"}, {"output_matrix", "fcn"}};
inline const Quantities structured_inputs = {{"inputs", "btf"},
                                             {"initial_state", "bfn"}};
inline const Quantities timed_system =
    structured_system + Quantities{{"time_deltas", "bt"}};
inline const Quantities timed_arguments =
    timed_system + Quantities{{"resets", "bt"}} + structured_inputs;
inline const Quantities inputs_from_zeros = {
    {"inputs", "btf"},
    {"initial_state", "000", false, "", kKerasLinrecFromZeros, "bfn"}};
inline const Quantities structured_scan_arguments =
    structured_system + Quantities{{"lengths", "b"}, {"resets", "bt"}} +
    inputs_from_zeros;
inline const Quantities convolution_arguments = {{"inputs", "btf"},
                                                 {"response", "fcl"}};
inline const Quantity step_size = {
    "step_size", "bt", false, "", kKerasLinrecPerStep, "11"};
inline const Quantities nonlinear_operands = {{"inputs", "btf"},
                                              {"input_kernel", "fg"},
                                              {"bias", "g"},
                                              {"recurrent_kernel", "nr"},
                                              {"expansion", "mn"},
                                              step_size,
                                              {"modulus_bias", "q"},
                                              resets,
                                              {"initial_state", "bn"}};

// The axis of decays has no number, one, or one for each key channel; those of
// erase and write have all heads or none.
inline const Quantities matrix_operands = {{"queries", "btxi"},
                                           {"keys", "btoyi"},
                                           {"values", "btohv"},
                                           {"decay", "btha"},
                                           {"erase", "btoe"},
                                           {"write", "btow"}};
inline const Quantity matrix_state = {"initial_state", "bhiv"};

inline const Quantities diagonal_system = {{"eigenvalues", "nf"},
                                           {"output_kernel", "cnf"},
                                           {"time_deltas", "bt", true}};
inline const Quantities diagonal_inputs = {{"inputs", "btdf", true},
                                           {"initial_state", "bnf"}};

inline const Quantities forced_oscillators = {{"timescale", "btn", true},
                                              {"stiffness", "btn", true},
                                              {"factor", "btn", true},
                                              {"forces", "btn"}};
inline const Quantities oscillator_states = {{"initial_positions", "bn"},
                                             {"initial_speeds", "bn"}};
inline const Quantities oscillations = {{"positions", "btn"},
                                        {"speeds", "btn"}};

inline const Operation operations[] = {
    {"scan", Kind::kComplex,
     keras_linrec_scan, keras_linrec_cuda_scan, keras_linrec_cuda_scan_scratch,
     "btc", 0,
     {decay, {"inputs", "btc"}, resets, initial_state},
     {{"outputs", "btc", false, "inputs"}, {"final_state", "bc"}}},
    {"scan_backward", Kind::kComplex,
     keras_linrec_scan_backward, keras_linrec_cuda_scan_backward,
     keras_linrec_cuda_scan_backward_scratch, "btc", 0,
     {decay, {"outputs", "btc"}, resets, initial_state,
      {"d_outputs", "btc"}, {"d_final_state", "bc"}},
     cotangents_of({decay, {"inputs", "btc", false, "d_outputs"},
                    initial_state})},
    {"gated_scan", Kind::kGated,
     keras_linrec_gated_scan, nullptr, nullptr, "btc", 0,
     gated_operands + Quantities{resets, initial_state},
     {{"outputs", "btc"}, {"final_state", "bc"}}},
    {"gated_scan_backward", Kind::kGated,
     keras_linrec_gated_scan_backward, nullptr, nullptr, "btc", 0,
     gated_operands + Quantities{{"outputs", "btc"}, resets, initial_state,
                                 {"d_outputs", "btc"}, {"d_final_state", "bc"}},
     cotangents_of(gated_operands + Quantities{initial_state})},
    {"projected_scan", Kind::kComplex,
     keras_linrec_projected_scan, nullptr, nullptr, "btfcu", has_block,
     projected_operands + Quantities{resets, initial_state},
     {{"outputs", "btu", true},
      {"final_state", "bc"},
      {"checkpoints", "bkpc", true}}},
    // The core does not read the initial state, which is in the checkpoints. It
    // is there for the gradient's own gradient.
    {"projected_scan_backward", Kind::kComplex,
     keras_linrec_projected_scan_backward, nullptr, nullptr, "btfcu", has_block,
     projected_operands + Quantities{resets,
                                     {"checkpoints", "bkpc", true},
                                     {"d_outputs", "btu", true},
                                     {"d_final_state", "bc"},
                                     initial_state},
     cotangents_of(projected_operands + Quantities{initial_state})},
    {"impulse_response", Kind::kReal,
     keras_linrec_impulse_response, keras_linrec_cuda_impulse_response,
     keras_linrec_cuda_impulse_response_scratch, "fcnt", has_time | has_alpha,
     structured_system, {{"response", "fct"}}},
    {"impulse_response_backward", Kind::kReal,
     keras_linrec_impulse_response_backward,
     keras_linrec_cuda_impulse_response_backward,
     keras_linrec_cuda_impulse_response_backward_scratch, "fcnt", has_time |
     has_alpha,
     structured_system + Quantities{{"d_response", "fct"}},
     cotangents_of(structured_system), "aaaaaa*"},
    {"structured_scan_irregular", Kind::kReal,
     keras_linrec_structured_scan_irregular, nullptr, nullptr, "btfcn",
     has_block | has_alpha,
     timed_arguments,
     {{"outputs", "btfc"}, {"final_state", "bfn"}, {"checkpoints", "bkfn"}}},
    {"structured_scan_irregular_backward", Kind::kReal,
     keras_linrec_structured_scan_irregular_backward, nullptr, nullptr, "btfcn",
     has_block | has_alpha,
     timed_arguments + Quantities{{"checkpoints", "bkfn"},
                                  {"d_outputs", "btfc"},
                                  {"d_final_state", "bfn"}},
     cotangents_of(timed_system + structured_inputs)},
    {"structured_scan", Kind::kReal,
     keras_linrec_structured_scan, nullptr, nullptr, "btfcn", has_alpha,
     structured_scan_arguments,
     {{"outputs", "btfc"}, {"final_state", "bfn"}}},
    {"structured_scan_backward", Kind::kReal,
     keras_linrec_structured_scan_backward, nullptr, nullptr, "btfcn",
     has_alpha,
     structured_scan_arguments +
         Quantities{{"d_outputs", "btfc"}, {"d_final_state", "bfn"}},
     cotangents_of(structured_system + inputs_from_zeros)},
    {"causal_convolution", Kind::kReal,
     keras_linrec_causal_convolution, nullptr, nullptr, "btfcl", has_leak,
     convolution_arguments, {{"outputs", "btfc"}}},
    {"causal_convolution_backward", Kind::kReal,
     keras_linrec_causal_convolution_backward, nullptr, nullptr, "btfcl",
     has_leak,
     convolution_arguments + Quantities{{"d_outputs", "btfc"}},
     cotangents_of(convolution_arguments), "ab"},
    {"move_steps", Kind::kReal,
     keras_linrec_move_steps, nullptr, nullptr, "btf", 0,
     {{"sequences", "btf"}, {"mask", "bt"}},
     {{"moved", "btf", false, "sequences"}}},
    {"move_steps_backward", Kind::kReal,
     keras_linrec_move_steps_backward, nullptr, nullptr, "btf", 0,
     {{"d_moved", "btf"}, {"mask", "bt"}},
     {{"d_sequences", "btf", false, "d_moved"}}},
    {"nonlinear_scan", Kind::kNonlinear,
     keras_linrec_nonlinear_scan, nullptr, nullptr, "btfnmz0", has_leak |
     has_keep,
     nonlinear_operands,
     {{"outputs", "bzn"}, {"final_state", "bn"}}},
    {"nonlinear_scan_backward", Kind::kNonlinear,
     keras_linrec_nonlinear_scan_backward, nullptr, nullptr, "btfnmtz",
     has_leak,
     nonlinear_operands + Quantities{{"outputs", "btn"},
                                     {"d_outputs", "bzn"},
                                     {"d_final_state", "bn"}},
     cotangents_of(nonlinear_operands)},
    {"matrix_scan", Kind::kReal,
     keras_linrec_matrix_scan, nullptr, nullptr, "btoxyhivaew", has_block,
     matrix_operands + Quantities{resets, matrix_state},
     {{"outputs", "bthv"}, {"final_state", "bhiv"}, {"checkpoints", "bkhiv"}}},
    {"matrix_scan_backward", Kind::kReal,
     keras_linrec_matrix_scan_backward, nullptr, nullptr, "btoxyhivaew",
     has_block,
     matrix_operands + Quantities{resets,
                                  matrix_state,
                                  {"checkpoints", "bkhiv"},
                                  {"d_outputs", "bthv"},
                                  {"d_final_state", "bhiv"}},
     cotangents_of(matrix_operands + Quantities{matrix_state})},
    {"diagonal_scan_irregular", Kind::kComplex,
     keras_linrec_diagonal_scan_irregular, nullptr, nullptr, "btdcnf",
     has_block,
     diagonal_system + Quantities{resets} + diagonal_inputs,
     {{"outputs", "btcf", true},
      {"final_state", "bnf"},
      {"checkpoints", "bkpnf", true}}},
    {"diagonal_scan_irregular_backward", Kind::kComplex,
     keras_linrec_diagonal_scan_irregular_backward, nullptr, nullptr, "btdcnf",
     has_block,
     diagonal_system + Quantities{resets} + diagonal_inputs +
         Quantities{{"checkpoints", "bkpnf", true},
                    {"d_outputs", "btcf", true},
                    {"d_final_state", "bnf"}},
     cotangents_of(diagonal_system + diagonal_inputs)},
    {"oscillator_scan_irregular", Kind::kComplex,
     keras_linrec_oscillator_scan_irregular, nullptr, nullptr, "btn", 0,
     forced_oscillators + Quantities{resets} + oscillator_states,
     oscillations},
    {"oscillator_scan_irregular_backward", Kind::kComplex,
     keras_linrec_oscillator_scan_irregular_backward, nullptr, nullptr, "btn",
     0,
     forced_oscillators + oscillations + Quantities{resets} +
         oscillator_states + cotangents_of(oscillations),
     cotangents_of(forced_oscillators + oscillator_states)},
    // The sequential part of the nonlinear scan: see cuda_core.h.
    {"cuda_nonlinear_scan", Kind::kNonlinear,
     nullptr, keras_linrec_cuda_nonlinear_scan, nullptr, "btnz", has_leak |
     has_keep,
     {{"drive", "btg"},
      {"matrix", "nr"},
      step_size,
      resets,
      {"initial_state", "bn"}},
     {{"outputs", "bzn"}, {"final_state", "bn"}}},
    {"cuda_nonlinear_scan_backward", Kind::kNonlinear,
     nullptr, keras_linrec_cuda_nonlinear_scan_backward, nullptr, "btnz",
     has_leak,
     {{"factors", "bstr"},
      {"matrix", "rn"},
      resets,
      {"d_outputs", "bzn"},
      {"d_final_state", "bn"}},
     {{"d_slopes", "bstn"}, {"d_initial_state", "bn"}}},
};

inline int64_t blocks_of(int64_t time, int64_t block) {
  return time / block + 2;
}

}  // namespace keras_linrec
