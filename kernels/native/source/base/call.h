// A call of an operation: the checks of its arguments' shapes, and what follows
// from these for the core.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/activation_kernels.h"
#include "base/operations.h"
#include "nonlinear/runge_kutta.h"

namespace keras_linrec {

struct Shape {
  const int64_t* sizes;
  size_t rank;
};

class Call {
 public:
  // `attributes` has the operation's, in the order of `all_attributes`.
  Call(const Operation& operation, int64_t flags, const int64_t* attributes)
      : operation_(operation), flags_(flags) {
    axes_.fill(-1);
    for (char digit = '0'; digit <= '9'; digit++) axes_[digit] = digit - '0';
    axes_['p'] = flags & kKerasLinrecComplex ? 2 : 1;
    for (const Attribute& attribute : all_attributes)
      if (operation.has(attribute.bit))
        attributes_[attribute.bit] = *attributes++;
    if (operation.has(has_time)) axes_['t'] = attributes_[has_time];
  }

  // Reads the shapes of all tensors. Returns why they do not fit together, or
  // nothing. They may have further leading axes, of independent systems, which
  // must be the same.
  std::string read(const std::vector<Shape>& shapes) {
    size_t tensor = 0;
    for (const Quantity& quantity : operation_.from)
      for (int p = 0; p < quantity.parts(flags_); p++) {
        if (tensor == shapes.size()) return another_number(shapes.size());
        const std::string& letters = quantity.letters(flags_);
        const Shape& shape = shapes[tensor++];
        if (!fits(letters, shape)) return message(quantity, letters, shape);
      }
    if (tensor < shapes.size()) return another_number(shapes.size());
    if (axes_['t'] < 1) return "there should be at least one time step";
    if (operation_.has(has_block)) {
      if (attributes_[has_block] < 1) return "`block` should be at least 1";
      const int64_t blocks = blocks_of(axes_['t'], attributes_[has_block]);
      if (const std::string error = require('k', blocks); !error.empty())
        return error;
    }
    if (operation_.has(has_keep))
      axes_['z'] = attributes_[has_keep] ? axes_['t'] : 0;
    if (operation_.kind == Kind::kGated)
      return require('g', (flags_ & kKerasLinrecTwoGates ? 3 : 2) * axes_['c']);
    return operation_.kind == Kind::kNonlinear ? read_nonlinear() : "";
  }

  // The product of the leading axes.
  int64_t groups() const {
    int64_t product = 1;
    for (int64_t size : leading_) product *= size;
    return product;
  }

  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes = {groups()};
    for (char letter : operation_.sizes) sizes.push_back(axes_[letter]);
    for (int bit : {has_block, has_alpha}) add(bit, &sizes);
    // The core chooses the length of its blocks.
    if (operation_.has(has_alpha)) sizes.push_back(0);
    add(has_leak, &sizes);
    return sizes;
  }

  // The sizes of a result, after the leading axes.
  std::vector<int64_t> shape_of(const Quantity& result) const {
    std::vector<int64_t> shape = leading_;
    for (char letter : result.letters(flags_)) shape.push_back(axes_[letter]);
    return shape;
  }

 private:
  void add(int bit, std::vector<int64_t>* sizes) const {
    if (operation_.has(bit)) sizes->push_back(attributes_.at(bit));
  }

  bool fits(const std::string& letters, const Shape& shape) {
    if (shape.rank < letters.size()) return false;
    const size_t before = shape.rank - letters.size();
    if (!is_led_) {
      leading_.assign(shape.sizes, shape.sizes + before);
      is_led_ = true;
    }
    if (before != leading_.size() ||
        !std::equal(leading_.begin(), leading_.end(), shape.sizes))
      return false;
    for (size_t i = 0; i < letters.size(); i++) {
      const int64_t size = shape.sizes[before + i];
      int64_t& known = axes_[letters[i]];
      if (known < 0) known = size;
      if (known != size) return false;
    }
    return true;
  }

  // Checks the sizes that the flags of a nonlinear scan determine.
  std::string read_nonlinear() {
    const int64_t units = axes_['n'];
    const bool modrelu = (flags_ >> kKerasLinrecActivationBit & 15) == kModrelu;
    const int solver = flags_ >> kKerasLinrecSolverBit & 3;
    const std::pair<char, int64_t> sizes[] = {
        {'g', (flags_ & kKerasLinrecGated ? 2 : 1) * units},
        {'r', axes_['m'] > 0 ? axes_['m']
                             : (flags_ & kKerasLinrecLinear ? 2 : 1) * units},
        {'q', modrelu ? units / 2 : 0},
        {'s', methods[solver].stages},
        {'z', axes_['z'] > 0 ? axes_['t'] : 0}};
    for (auto [letter, size] : sizes)
      if (const std::string error = require(letter, size); !error.empty())
        return error;
    return "";
  }

  // What is wrong if an axis that an argument has is not as long as it should.
  std::string require(char letter, int64_t size) {
    if (axes_[letter] < 0) axes_[letter] = size;
    if (axes_[letter] == size) return "";
    for (const Quantity& quantity : operation_.from)
      if (quantity.letters(flags_).find(letter) != std::string::npos)
        return "`" + quantity.name + "` should have " + std::to_string(size) +
               " " + name_of(letter) +
               ". Received: " + std::to_string(axes_[letter]);
    return "";
  }

  std::string another_number(size_t received) const {
    int expected = 0;
    for (const Quantity& quantity : operation_.from)
      expected += quantity.parts(flags_);
    return "there should be " + std::to_string(expected) +
           " tensors. Received: " + std::to_string(received);
  }

  // With the sizes that are known from earlier arguments.
  std::string message(const Quantity& quantity, const std::string& letters,
                      const Shape& shape) const {
    std::string expected, received;
    for (int64_t size : leading_) expected += std::to_string(size) + ", ";
    for (char letter : letters) {
      const bool is_digit = letter >= '0' && letter <= '9';
      expected += is_digit ? std::string(1, letter) : name_of(letter);
      if (!is_digit && axes_[letter] >= 0)
        expected += "=" + std::to_string(axes_[letter]);
      expected += ", ";
    }
    for (size_t i = 0; i < shape.rank; i++)
      received += std::to_string(shape.sizes[i]) + ", ";
    return "`" + quantity.name + "` should have the shape (" + trim(expected) +
           "). Received: shape (" + trim(received) + ")";
  }

  static std::string trim(const std::string& list) {
    return list.substr(0, list.empty() ? 0 : list.size() - 2);
  }

  static std::string name_of(char letter) {
    static const std::map<char, const char*> names = {
        {'b', "batch"},   {'t', "time"},          {'f', "features"},
        {'c', "channels"}, {'u', "units"},        {'k', "blocks"},
        {'p', "parts"},   {'n', "state"},         {'g', "driven units"},
        {'l', "taps"},    {'r', "recurrent columns"}, {'m', "rank"},
        {'q', "pairs"},   {'z', "steps or none"}, {'s', "stages"},
        {'o', "products"}, {'x', "query heads"},  {'y', "key heads"},
        {'h', "heads"},   {'i', "key channels"},
        {'v', "value channels"}, {'a', "decays"}, {'e', "erased heads"},
        {'w', "written heads"},   {'d', "drives"}};
    return names.at(letter);
  }

  const Operation& operation_;
  const int64_t flags_;
  std::map<int, int64_t> attributes_;
  std::vector<int64_t> leading_;
  bool is_led_ = false;
  // By letter; -1 if unknown.
  std::array<int64_t, 128> axes_;
};

}  // namespace keras_linrec
