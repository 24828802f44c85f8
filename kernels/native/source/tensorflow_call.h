// A call of an operation: the attributes that its kernel is constructed with,
// and the sizes that follow from the shapes of its arguments.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "activation_kernels.h"
#include "runge_kutta.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_operations.h"

namespace keras_linrec {

struct Attributes {
  const Operation& operation;
  tf::DataType type = tf::DT_INVALID;
  int parts = 1;
  bool reverse = false;
  int64_t block = 1, time = 1, alpha = 0, flags = 0, leak = 0;
  std::vector<bool> wanted;

  explicit Attributes(tf::OpKernelConstruction* context)
      : operation(operation_of(context->def().op())) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    get(context, has_parts, "parts", &parts);
    get(context, has_reverse, "reverse", &reverse);
    get(context, has_block, "block", &block);
    get(context, has_time, "time", &time);
    get(context, has_alpha, "alpha", &alpha);
    get(context, has_activation | has_flags, "flags", &flags);
    get(context, has_activation, "leak", &leak);
    get(context, has_wanted, "wanted", &wanted);
    OP_REQUIRES(context, is_complete(operation, wanted),
                absl::InvalidArgumentError(absl::StrCat(
                    operation.name, ": `wanted` should have ",
                    operation.to.size(), " entries")));
    OP_REQUIRES(context, parts <= 2,
                absl::InvalidArgumentError(absl::StrCat(
                    operation.name, ": `parts` should be 1 (real) or 2 "
                    "(complex). Received: parts=", parts)));
  }

 private:
  template <class Value>
  void get(tf::OpKernelConstruction* context, int attribute, const char* name,
           Value* value) {
    if (operation.has(attribute))
      OP_REQUIRES_OK(context, context->GetAttr(name, value));
  }
};

class Call {
 public:
  explicit Call(const Attributes& attributes)
      : attributes_(attributes), operation_(attributes.operation) {}

  absl::Status read(const std::vector<tf::TensorShape>& shapes) {
    per_step_ = shapes[0].dims() == 3;
    axes_['p'] = attributes_.parts;
    axes_['3'] = 3;
    axes_['0'] = 0;
    if (operation_.has(has_time)) axes_['t'] = attributes_.time;
    size_t tensor = 0;
    for (const Quantity& quantity : operation_.from)
      for (int p = 0; p < quantity.parts(attributes_.parts); p++)
        TF_RETURN_IF_ERROR(read(quantity, shapes[tensor++]));
    if (axes_['t'] < 1)
      return absl::InvalidArgumentError(absl::StrCat(
          operation_.name, ": there should be at least one time step"));
    const int64_t blocks = blocks_of(axes_['t'], attributes_.block);
    if (axes_.emplace('k', blocks).first->second != blocks)
      return absl::InvalidArgumentError(
          absl::StrCat(operation_.name, ": there should be ", blocks,
                       " checkpoints. Received: ", axes_['k']));
    if (axes_.count('y')) {
      TF_RETURN_IF_ERROR(require('x', has_resets() ? axes_['b'] : 0));
      TF_RETURN_IF_ERROR(require('y', has_resets() ? axes_['t'] : 0));
    }
    return operation_.has(has_form) ? read_form() : absl::OkStatus();
  }

  int flags() const {
    const int wide =
        attributes_.type == tf::DT_DOUBLE ? kKerasLinrecFloat64 : 0;
    if (operation_.has(has_activation | has_flags))
      return static_cast<int>(attributes_.flags) | wide;
    return wide | (attributes_.parts == 2 ? kKerasLinrecComplex : 0) |
           (per_step_ ? kKerasLinrecPerStep : 0) |
           (has_resets() ? kKerasLinrecResets : 0) |
           (attributes_.reverse ? kKerasLinrecReverse : 0);
  }

  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes = {1};
    for (char letter : operation_.sizes) sizes.push_back(axes_.at(letter));
    if (operation_.has(has_block)) sizes.push_back(attributes_.block);
    // The last size lets the core choose the length of its blocks.
    if (operation_.has(has_alpha))
      sizes.insert(sizes.end(), {attributes_.alpha, 0});
    if (operation_.has(has_activation)) sizes.push_back(attributes_.leak);
    return sizes;
  }

  // Calls work(tensor, reused, shape) for each tensor of the results; `reused`
  // is the argument that the result may overwrite, or -1.
  template <class Work>
  absl::Status for_each_result(Work work) const {
    int tensor = 0;
    for (const Quantity& quantity : operation_.to)
      for (int p = 0; p < quantity.parts(attributes_.parts); p++) {
        tf::TensorShape shape;
        if (!is_wanted(attributes_.wanted, tensor)) shape.AddDim(0);
        else
          for (char letter : axes_of(quantity, per_step_))
            shape.AddDim(axes_.at(letter));
        const int reused =
            quantity.reuses < 0
                ? -1
                : operation_.argument(quantity.reuses, attributes_.parts) + p;
        TF_RETURN_IF_ERROR(work(tensor++, reused, shape));
      }
    return absl::OkStatus();
  }

 private:
  // Checks the sizes that the flags of a nonlinear scan determine.
  absl::Status read_form() {
    const int64_t flags = attributes_.flags, units = axes_['n'];
    const bool modrelu = (flags >> kKerasLinrecActivationBit & 15) ==
        kModrelu;
    const bool per_step = flags & kKerasLinrecPerStep;
    const bool keeps = axes_.count('z') && axes_['z'];
    const int stages = methods[flags >> kKerasLinrecSolverBit & 3].stages;
    const std::pair<char, int64_t> sizes[] = {
        {'g', (flags & kKerasLinrecGated ? 2 : 1) * units},
        {'r', axes_['m'] ? axes_['m']
                         : (flags & kKerasLinrecLinear ? 2 : 1) * units},
        {'q', modrelu ? units / 2 : 0},
        {'i', per_step ? axes_['b'] : 1},
        {'j', per_step ? axes_['t'] : 1},
        {'s', stages},
        {'y', flags & kKerasLinrecResets ? axes_['t'] : 0},
        {'z', keeps ? axes_['t'] : 0}};
    for (auto [letter, size] : sizes)
      if (axes_.count(letter)) TF_RETURN_IF_ERROR(require(letter, size));
    return absl::OkStatus();
  }

  absl::Status require(char letter, int64_t size) {
    if (axes_[letter] == size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        operation_.name, ": `", std::string(1, letter), "` should be ", size,
        ". Received: ", axes_[letter]));
  }

  // Resets have the axes of rows and steps, or none of either.
  bool has_resets() const {
    const auto steps = axes_.find('y');
    return steps != axes_.end() && steps->second > 0;
  }

  absl::Status read(const Quantity& quantity, const tf::TensorShape& shape) {
    const std::string letters = axes_of(quantity, per_step_);
    bool fits = shape.dims() == static_cast<int>(letters.size());
    for (int i = 0; fits && i < shape.dims(); i++) {
      const int64_t size = shape.dim_size(i);
      fits = axes_.emplace(letters[i], size).first->second == size;
    }
    if (fits) return absl::OkStatus();
    static const std::map<char, const char*> names = {
        {'b', "batch"},
        {'t', "time"},
        {'f', "features"},
        {'c', "channels"},
        {'u', "units"},
        {'k', "blocks"},
        {'p', "parts"},
        {'n', "state"},
        {'3', "bands"},
        {'g', "driven units"},
        {'r', "recurrent columns"},
        {'m', "rank"},
        {'l', "taps"},
        {'i', "rows"},
        {'j', "steps"},
        {'q', "pairs"},
        {'z', "steps or 0"},
        {'x', "rows or 0"},
        {'y', "steps or 0"},
        {'s', "stages"}};
    // With the sizes that are known from earlier arguments.
    std::vector<std::string> expected;
    for (char letter : letters) {
      const auto known = axes_.find(letter);
      expected.push_back(known == axes_.end() ? names.at(letter)
                                              : absl::StrCat(names.at(letter),
                                                             "=",
                                                             known->second));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        operation_.name, ": `", quantity.name, "` should have shape (",
        absl::StrJoin(expected, ", "), "). Received: shape ",
        shape.DebugString()));
  }

  const Attributes& attributes_;
  const Operation& operation_;
  bool per_step_ = false;
  std::map<char, int64_t> axes_;
};

}  // namespace keras_linrec
