// The shapes of results in TensorFlow's graphs, where sizes may be unknown.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/operations.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace keras_linrec {

namespace tf = tensorflow;

// Whether a gradient that an operation returns is wanted. It has no elements
// otherwise.
inline bool is_wanted(const std::vector<bool>& wanted, size_t result) {
  return wanted.empty() || wanted[result];
}

// Whether the core can compute what is wanted: see `Operation::wanted`.
inline bool is_complete(const Operation& operation,
                        const std::vector<bool>& wanted) {
  const std::string& letters = operation.wanted;
  if (letters.empty()) return true;
  if (wanted.size() != letters.size()) return false;
  for (size_t i = 0; i < wanted.size(); i++)
    if (wanted[i] != (letters[i] == '*' || wanted[letters.find(letters[i])]))
      return false;
  return true;
}

inline absl::Status infer_shapes(
    const Operation& operation,
    tf::shape_inference::InferenceContext* context) {
  using tf::shape_inference::DimensionHandle;
  using tf::shape_inference::ShapeHandle;
  int64_t flags, time, block;
  TF_RETURN_IF_ERROR(context->GetAttr("flags", &flags));
  std::map<char, DimensionHandle> axes;
  for (char digit = '0'; digit <= '9'; digit++)
    axes[digit] = context->MakeDim(digit - '0');
  axes['p'] = context->MakeDim(flags & kKerasLinrecComplex ? 2 : 1);
  if (operation.has(has_time)) {
    TF_RETURN_IF_ERROR(context->GetAttr("time", &time));
    axes['t'] = context->MakeDim(time);
  }
  auto axis = [&](char letter) -> DimensionHandle& {
    return axes.emplace(letter, context->UnknownDim()).first->second;
  };
  int tensor = 0;
  for (const Quantity& quantity : operation.from)
    for (int p = 0; p < quantity.parts(flags); p++) {
      if (tensor == context->num_inputs())
        return absl::InvalidArgumentError("too few tensors");
      ShapeHandle shape = context->input(tensor++);
      const std::string& letters = quantity.letters(flags);
      TF_RETURN_IF_ERROR(context->WithRank(shape, letters.size(), &shape));
      for (size_t i = 0; i < letters.size(); i++) {
        DimensionHandle& known = axis(letters[i]);
        TF_RETURN_IF_ERROR(
            context->Merge(known, context->Dim(shape, i), &known));
      }
    }
  if (operation.has(has_block) && context->ValueKnown(axis('t'))) {
    TF_RETURN_IF_ERROR(context->GetAttr("block", &block));
    axes['k'] = context->MakeDim(blocks_of(context->Value(axes['t']), block));
  }
  if (operation.has(has_keep)) {
    int64_t keep;
    TF_RETURN_IF_ERROR(context->GetAttr("keep", &keep));
    axes['z'] = keep ? axis('t') : context->MakeDim(int64_t{0});
  }

  std::vector<bool> wanted;
  if (!operation.wanted.empty())
    TF_RETURN_IF_ERROR(context->GetAttr("wanted", &wanted));
  if (!is_complete(operation, wanted))
    return absl::InvalidArgumentError("`wanted` is incomplete");
  tensor = 0;
  for (const Quantity& quantity : operation.to)
    for (int p = 0; p < quantity.parts(flags); p++) {
      std::vector<DimensionHandle> dimensions;
      for (char letter : quantity.letters(flags))
        dimensions.push_back(axis(letter));
      context->set_output(tensor, is_wanted(wanted, tensor)
                                      ? context->MakeShape(dimensions)
                                      : context->Vector(int64_t{0}));
      tensor++;
    }
  return absl::OkStatus();
}

}  // namespace keras_linrec
