// The table of operations as text, and the checks of a call, for Python.
#include <algorithm>
#include <string>
#include <vector>

#include "base/call.h"
#include "base/operations.h"

namespace keras_linrec {
namespace {

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string field(const char* name, const std::string& value) {
  return quoted(name) + ": " + value;
}

template <class Items, class Write>
std::string list(const Items& items, Write write) {
  std::string text;
  for (const auto& item : items)
    text += (text.empty() ? "" : ", ") + write(item);
  return "[" + text + "]";
}

std::string text_of(const Quantity& quantity) {
  return "{" + field("name", quoted(quantity.name)) + ", " +
         field("axes", quoted(quantity.axes)) + ", " +
         field("real", quantity.real ? "true" : "false") + ", " +
         field("reuses", quoted(quantity.reuses)) + ", " +
         field("flag", std::to_string(quantity.flag)) + ", " +
         field("otherwise", quoted(quantity.otherwise)) + "}";
}

std::string text_of(const Operation& operation) {
  std::vector<std::string> attributes;
  for (const Attribute& attribute : all_attributes)
    if (operation.has(attribute.bit)) attributes.push_back(attribute.name);
  const auto write = [](const Quantity& quantity) { return text_of(quantity); };
  return "{" + field("name", quoted(operation.name)) + ", " +
         field("is_complex",
               operation.kind == Kind::kComplex ? "true" : "false") + ", " +
         field("on_cpu", operation.core ? "true" : "false") + ", " +
         field("on_cuda", operation.cuda ? "true" : "false") + ", " +
         field("attributes", list(attributes, quoted)) + ", " +
         field("arguments", list(operation.from, write)) + ", " +
         field("results", list(operation.to, write)) + ", " +
         field("wanted", quoted(operation.wanted)) + "}";
}

}  // namespace
}  // namespace keras_linrec

const char* keras_linrec_operations() {
  using namespace keras_linrec;
  static const std::string text =
      list(operations, [](const Operation& one) { return text_of(one); });
  return text.c_str();
}

const char* keras_linrec_sizes(int operation, int64_t flags,
                               const int64_t* attributes, int tensors,
                               const int64_t* shapes, int64_t* sizes) {
  using namespace keras_linrec;
  static thread_local std::string error;
  std::vector<Shape> given;
  for (int i = 0; i < tensors; i++) {
    const size_t rank = *shapes++;
    given.push_back({shapes, rank});
    shapes += rank;
  }
  Call call(operations[operation], flags, attributes);
  error = call.read(given);
  if (!error.empty()) return error.c_str();
  const std::vector<int64_t> found = call.sizes();
  std::copy(found.begin(), found.end(), sizes);
  return nullptr;
}
