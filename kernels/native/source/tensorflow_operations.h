// The core's operations in TensorFlow: their names, arguments and results, and
// the inference of the results' shapes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/shape_inference.h"
#include "xla_calls.h"
#include "xla_cuda.h"

namespace keras_linrec {

namespace tf = tensorflow;

// Axes are letters: Batch, Time, Features, Channels, Units, blocKs of time,
// Lags of a response, Parts, the Numbers of a state, Stages of a solver; "3" is
// three and "0" is zero. Other letters are sizes specific to an operation. A
// decay has the axes "c" or, if it is given per step, "btc".
constexpr char decay_axes[] = "decay";

struct Quantity {
  std::string name, axes;
  // One tensor, even if the others are complex and have two parts.
  bool real = false;
  // For a result: the argument that it may overwrite, or -1.
  int reuses = -1;

  int parts(int parts) const { return real ? 1 : parts; }
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

// The attributes of an operation, beside the number type.
constexpr int has_parts = 1, has_reverse = 2, has_block = 4, has_time = 8,
              has_alpha = 16, has_activation = 32, has_form = 64,
              has_wanted = 128, has_flags = 256;
constexpr int of_scan = has_parts | has_reverse;
constexpr int of_recurrence = has_activation | has_form;

struct Operation {
  const char* name;
  Core core;
  // The core's sizes after the number of groups, which is one.
  std::string sizes;
  int attributes;
  Quantities from, to;
  // For an operation on GPUs, which has no function of the core.
  CudaCore cuda = nullptr;
  Scratch scratch = nullptr;

  bool has(int attribute) const { return attributes & attribute; }

  // The index of an argument's first tensor.
  int argument(int quantity, int parts) const {
    int tensor = 0;
    for (int q = 0; q < quantity; q++) tensor += from[q].parts(parts);
    return tensor;
  }
};

// Arguments that an operation shares with its gradient.
inline const Quantities projected_arguments = {{"decay", decay_axes},
                                               {"inputs", "btf", true},
                                               {"input_kernel", "fc"},
                                               {"output_kernel", "cu"}};
inline const Quantities resets = {{"resets", "xy", true}};
inline const Quantities initial_state = {{"initial_state", "bc"}};
inline const Quantities scan_arguments = {{"decay", decay_axes},
                                          {"inputs", "btc"},
                                          {"resets", "xy", true},
                                          {"initial_state", "bc"}};
inline const Quantities scan_results = {{"outputs", "btc", false, 1},
                                        {"final_state", "bc"}};
inline const Quantities scan_backward_arguments = {{"decay", decay_axes},
                                                   {"outputs", "btc"},
                                                   {"resets", "xy", true},
                                                   {"initial_state", "bc"},
                                                   {"d_outputs", "btc"},
                                                   {"d_final_state", "bc"}};
inline const Quantities scan_gradients = {{"d_decay", decay_axes},
                                          {"d_inputs", "btc", false, 4},
                                          {"d_initial_state", "bc"}};
inline const Quantities response_arguments = {{"p", "n"},
                                              {"d", "n"},
                                              {"q", "n"},
                                              {"t", "3n"},
                                              {"b", "n"},
                                              {"timescale", "f"},
                                              {"output_matrix", "fcn"}};
inline const Quantities varying_system =
    response_arguments + Quantities{{"time_deltas", "bt"}};
inline const Quantities varying_inputs = {{"inputs", "btf"},
                                          {"initial_state", "bfn"}};
inline const Quantities varying_arguments =
    varying_system + Quantities{{"resets", "bt"}} + varying_inputs;
inline const Quantities carried_arguments =
    response_arguments + Quantities{{"lengths", "b"}, {"resets", "bt"}} +
    varying_inputs;
inline const Quantities convolution_arguments = {{"inputs", "btf"},
                                                 {"response", "fcl"}};
inline const Quantities nonlinear_arguments = {{"inputs", "btf"},
                                               {"input_kernel", "fg"},
                                               {"bias", "g"},
                                               {"recurrent", "nr"},
                                               {"expansion", "mn"},
                                               {"step_size", "ij"},
                                               {"modulus_bias", "q"},
                                               {"resets", "xy", true},
                                               {"initial_state", "bn"}};

inline const Operation operations[] = {
    {"KerasLinrecScan",
     keras_linrec_scan,
     "btc",
     of_scan,
     scan_arguments,
     scan_results},
    {"KerasLinrecScanBackward",
     keras_linrec_scan_backward,
     "btc",
     of_scan,
     scan_backward_arguments,
     scan_gradients},
    {"KerasLinrecProjectedScan",
     keras_linrec_projected_scan,
     "btfcu",
     of_scan | has_block,
     projected_arguments + resets + initial_state,
     {{"outputs", "btu", true},
      {"final_state", "bc"},
      {"checkpoints", "bkpc", true}}},
    // The initial state is there for the gradient's own gradient. The core
    // ignores arguments after those that it reads.
    {"KerasLinrecProjectedScanBackward",
     keras_linrec_projected_scan_backward,
     "btfcu",
     of_scan | has_block,
     projected_arguments + resets +
         Quantities{{"checkpoints", "bkpc", true},
                    {"d_outputs", "btu", true},
                    {"d_final_state", "bc"}} +
         initial_state,
     cotangents_of(projected_arguments + initial_state)},
    {"KerasLinrecImpulseResponse",
     keras_linrec_impulse_response,
     "fcnt",
     has_time | has_alpha,
     response_arguments,
     {{"response", "fct"}}},
    {"KerasLinrecImpulseResponseBackward",
     keras_linrec_impulse_response_backward,
     "fcnt",
     has_time | has_alpha | has_wanted,
     response_arguments + Quantities{{"d_response", "fct"}},
     cotangents_of(response_arguments)},
    {"KerasLinrecVaryingResponse",
     keras_linrec_varying_response,
     "btfcn",
     has_block | has_alpha,
     varying_arguments,
     {{"outputs", "btfc"}, {"final_state", "bfn"}, {"checkpoints", "bkfn"}}},
    {"KerasLinrecVaryingResponseBackward",
     keras_linrec_varying_response_backward,
     "btfcn",
     has_block | has_alpha,
     varying_arguments + Quantities{{"checkpoints", "bkfn"},
                                    {"d_outputs", "btfc"},
                                    {"d_final_state", "bfn"}},
     cotangents_of(varying_system + varying_inputs)},
    {"KerasLinrecCarriedResponse",
     keras_linrec_carried_response,
     "btfcn",
     has_alpha,
     carried_arguments,
     {{"outputs", "btfc"}, {"final_state", "bfn"}}},
    {"KerasLinrecCarriedResponseBackward",
     keras_linrec_carried_response_backward,
     "btfcn",
     has_alpha,
     carried_arguments +
         Quantities{{"d_outputs", "btfc"}, {"d_final_state", "bfn"}},
     cotangents_of(response_arguments + varying_inputs)},
    {"KerasLinrecCausalConvolution",
     keras_linrec_causal_convolution,
     "btfcl",
     has_activation,
     convolution_arguments,
     {{"outputs", "btfc"}}},
    {"KerasLinrecCausalConvolutionBackward",
     keras_linrec_causal_convolution_backward,
     "btfcl",
     has_activation | has_wanted,
     convolution_arguments + Quantities{{"d_outputs", "btfc"}},
     cotangents_of(convolution_arguments)},
    // Its own gradient: a move is transposed by one of its flags.
    {"KerasLinrecMoveSteps",
     keras_linrec_move_steps,
     "btf",
     has_flags,
     {{"sequences", "btf"}, {"mask", "bt"}},
     {{"moved", "btf", false, 0}}},
    {"KerasLinrecNonlinearScan",
     keras_linrec_nonlinear_scan,
     "btfnmt0",
     of_recurrence,
     nonlinear_arguments,
     {{"outputs", "btn"}, {"final_state", "bn"}}},
    {"KerasLinrecNonlinearScanBackward",
     keras_linrec_nonlinear_scan_backward,
     "btfnmtz",
     of_recurrence,
     nonlinear_arguments + Quantities{{"outputs", "btn"},
                                      {"d_outputs", "bzn"},
                                      {"d_final_state", "bn"}},
     cotangents_of(nonlinear_arguments)},
    // Those of the CUDA core: see cuda_core.h.
    {"KerasLinrecCudaScan", nullptr, "btc", of_scan, scan_arguments,
     scan_results, keras_linrec_cuda_scan, keras_linrec_cuda_scan_scratch},
    {"KerasLinrecCudaScanBackward", nullptr, "btc", of_scan,
     scan_backward_arguments, scan_gradients, keras_linrec_cuda_scan_backward,
     keras_linrec_cuda_scan_backward_scratch},
    {"KerasLinrecCudaImpulseResponse", nullptr, "fcnt", has_time | has_alpha,
     response_arguments, {{"response", "fct"}},
     keras_linrec_cuda_impulse_response, no_scratch},
    {"KerasLinrecCudaImpulseResponseBackward", nullptr, "fcnt",
     has_time | has_alpha | has_wanted,
     response_arguments + Quantities{{"d_response", "fct"}},
     cotangents_of(response_arguments),
     keras_linrec_cuda_impulse_response_backward,
     keras_linrec_cuda_impulse_response_backward_scratch},
    {"KerasLinrecCudaNonlinearScan", nullptr, "btnt", of_recurrence,
     {{"drive", "btg"},
      {"matrix", "nr"},
      {"step_size", "ij"},
      {"resets", "xy", true},
      {"initial_state", "bn"}},
     {{"outputs", "btn"}, {"final_state", "bn"}},
     keras_linrec_cuda_nonlinear_scan, no_scratch},
    {"KerasLinrecCudaNonlinearScanBackward", nullptr, "btnz", of_recurrence,
     {{"factors", "bstr"},
      {"matrix", "rn"},
      {"resets", "xy", true},
      {"d_outputs", "bzn"},
      {"d_final_state", "bn"}},
     {{"d_slopes", "bstn"}, {"d_initial_state", "bn"}},
     keras_linrec_cuda_nonlinear_scan_backward, no_scratch},
};

inline const Operation& operation_of(const std::string& name) {
  for (const Operation& operation : operations)
    if (name == operation.name) return operation;
  LOG(FATAL) << "keras_linrec has no operation " << name;
}

inline std::string axes_of(const Quantity& quantity, bool per_step) {
  if (quantity.axes != decay_axes) return quantity.axes;
  return per_step ? "btc" : "c";
}

inline int64_t blocks_of(int64_t time, int64_t block) {
  return time / block + 2;
}

// Whether a gradient that an operation returns is wanted. It has no elements
// otherwise.
inline bool is_wanted(const std::vector<bool>& wanted, size_t result) {
  return wanted.empty() || wanted[result];
}

inline bool is_complete(const Operation& operation,
                        const std::vector<bool>& wanted) {
  return !operation.has(has_wanted) || wanted.size() == operation.to.size();
}

// Infers the shapes of an operation's results.
inline absl::Status infer_shapes(const Operation& operation,
                          tf::shape_inference::InferenceContext* context) {
  using tf::shape_inference::DimensionHandle;
  using tf::shape_inference::ShapeHandle;
  int parts = 1;
  if (operation.has(has_parts))
    TF_RETURN_IF_ERROR(context->GetAttr("parts", &parts));
  const ShapeHandle decay = context->input(0);
  const bool decay_known = context->RankKnown(decay);
  const bool per_step = decay_known && context->Rank(decay) == 3;

  std::map<char, DimensionHandle> axes;
  axes['p'] = context->MakeDim(parts);
  axes['3'] = context->MakeDim(3);
  if (operation.has(has_time)) {
    int64_t time;
    TF_RETURN_IF_ERROR(context->GetAttr("time", &time));
    axes['t'] = context->MakeDim(time);
  }
  auto axis = [&](char letter) -> DimensionHandle& {
    return axes.emplace(letter, context->UnknownDim()).first->second;
  };
  int tensor = 0;
  for (const Quantity& quantity : operation.from)
    for (int p = 0; p < quantity.parts(parts); p++) {
      ShapeHandle shape = context->input(tensor++);
      if (quantity.axes == decay_axes && !decay_known) continue;
      const std::string letters = axes_of(quantity, per_step);
      TF_RETURN_IF_ERROR(context->WithRank(shape, letters.size(), &shape));
      for (size_t i = 0; i < letters.size(); i++) {
        DimensionHandle& known = axis(letters[i]);
        TF_RETURN_IF_ERROR(
            context->Merge(known, context->Dim(shape, i), &known));
      }
    }
  if (operation.has(has_block) && context->ValueKnown(axis('t'))) {
    int64_t block;
    TF_RETURN_IF_ERROR(context->GetAttr("block", &block));
    axes['k'] = context->MakeDim(blocks_of(context->Value(axes['t']), block));
  }

  std::vector<bool> wanted;
  if (operation.has(has_wanted))
    TF_RETURN_IF_ERROR(context->GetAttr("wanted", &wanted));
  if (!is_complete(operation, wanted))
    return absl::InvalidArgumentError("`wanted` is incomplete");
  tensor = 0;
  for (const Quantity& quantity : operation.to)
    for (int p = 0; p < quantity.parts(parts); p++) {
      ShapeHandle shape = decay;
      if (!is_wanted(wanted, tensor)) {
        shape = context->Vector(int64_t{0});
      } else if (quantity.axes != decay_axes || decay_known) {
        std::vector<DimensionHandle> dimensions;
        for (char letter : axes_of(quantity, per_step))
          dimensions.push_back(axis(letter));
        shape = context->MakeShape(dimensions);
      }
      context->set_output(tensor++, shape);
    }
  return absl::OkStatus();
}

}  // namespace keras_linrec
