// Responses with states (structured_scan.h) step by step: where that costs
// less, and for rows with a NaN or an infinity.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/core.h"
#include "structured/structured_scan_pieces.h"

namespace keras_linrec {

// Memory without the zeros that a std::vector begins with.
template <class Real>
std::unique_ptr<Real[]> numbers(int64_t count) {
  return std::unique_ptr<Real[]>(new Real[count]);
}

// The steps of a row, of a call's arguments.
template <class Real>
int64_t length_of(const StructuredScanSizes& s, const void* const* from,
                  int64_t row) {
  const Real length = static_cast<const Real*>(from[7])[row];
  return std::clamp<int64_t>(static_cast<int64_t>(length), 0, s.time);
}

// A call of the response to steps of any length (core.h): the length is 1, and
// behind the ends of rows, where the inputs may be anything, 0.
template <class Real>
class Steps {
 public:
  Steps(const StructuredScanSizes& s, const void* const* from)
      : s_(s),
        flags_(sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0),
        deltas_(s.groups * s.batch * s.time),
        resets_(deltas_.size()),
        inputs_(deltas_.size() * s.features) {
    const Real* resets = static_cast<const Real*>(from[8]);
    const Real* inputs = static_cast<const Real*>(from[9]);
    for (int64_t row = 0; row < s.groups * s.batch; row++) {
      const int64_t steps = length_of<Real>(s, from, row);
      std::fill_n(deltas_.begin() + row * s.time, steps, Real{1});
      std::copy_n(resets + row * s.time, steps, &resets_[row * s.time]);
      std::copy_n(inputs + row * s.inputs(), steps * s.features,
                  &inputs_[row * s.inputs()]);
    }
    // As in `irregular_block` of kernels/native/__init__.py.
    const int64_t block = std::max<int64_t>(
        {8, 1024 / s.state, static_cast<int64_t>(std::sqrt(s.time)) / 2});
    sizes_ = {s.groups,   s.batch, s.time, s.features,
              s.channels, s.state, block,  0};
    std::memcpy(&sizes_[7], &s.alpha, sizeof s.alpha);
    checkpoints_ = numbers<Real>(s.groups * (s.time / block + 2) * s.batch *
                                 s.features * s.state);
    std::copy_n(from, 11, from_);
    from_[7] = deltas_.data();
    from_[8] = resets_.data();
    from_[9] = inputs_.data();
    from_[11] = checkpoints_.get();
  }

  int forward(void* outputs, void* final_state) {
    void* const to[] = {outputs, final_state, checkpoints_.get()};
    const int status = keras_linrec_structured_scan_irregular(
        flags_, sizes_.data(), from_, to);
    clear_behind(static_cast<Real*>(outputs));
    return status;
  }

  int backward(const void* d_outputs, const void* d_final_state,
               void* const* to) {
    // The forward pass keeps nothing.
    const int64_t rows = s_.groups * s_.batch, count = rows * s_.outputs();
    const auto outputs = numbers<Real>(count);
    const auto states = numbers<Real>(rows * s_.states());
    const int status = forward(outputs.get(), states.get());
    if (status != kKerasLinrecDone) return status;
    std::copy_n(static_cast<const Real*>(d_outputs), count, outputs.get());
    clear_behind(outputs.get());
    from_[12] = outputs.get();
    from_[13] = d_final_state;
    // The cotangents of the steps' lengths, which nobody wants.
    const auto d_deltas = numbers<Real>(rows * s_.time);
    void* all[10];
    std::copy_n(to, 7, all);
    all[7] = d_deltas.get();
    std::copy_n(to + 7, 2, all + 8);
    return keras_linrec_structured_scan_irregular_backward(
        flags_, sizes_.data(), from_, all);
  }

 private:
  void clear_behind(Real* numbers) const {
    const int64_t width = s_.features * s_.channels;
    for (size_t step = 0; step < deltas_.size(); step++)
      if (deltas_[step] == 0)
        std::fill_n(numbers + step * width, width, Real{0});
  }

  const StructuredScanSizes& s_;
  int flags_;
  std::vector<Real> deltas_, resets_, inputs_;
  std::array<int64_t, 8> sizes_;
  std::unique_ptr<Real[]> checkpoints_;
  const void* from_[14];
};

template <class Real>
bool all_finite(const Real* numbers, int64_t count) {
  int other = 0;
  for (int64_t i = 0; i < count; i++) other |= numbers[i] - numbers[i] != 0;
  return !other;
}

// The rows whose inputs, or cotangents of outputs, have a NaN or an infinity:
// in the products of a block it would reach the steps on its other side. The
// other rows are computed as without them, to the last bit.
template <class Real>
class BadRows {
 public:
  BadRows(const StructuredScanSizes& s, const void* const* from,
          const void* d_outputs)
      : s_(s), sizes_(s) {
    std::vector<std::vector<int64_t>> found(s.groups);
    for (int64_t g = 0; g < s.groups; g++)
      for (int64_t row = g * s.batch; row < (g + 1) * s.batch; row++) {
        const int64_t inputs = length_of<Real>(s, from, row) * s.features;
        if (!all_finite(of_row(from[9], row, s.inputs()), inputs) ||
            (d_outputs && !all_finite(of_row(d_outputs, row, s.outputs()),
                                      inputs * s.channels)))
          found[g].push_back(row);
      }
    sizes_.batch = 0;
    for (const auto& rows : found)
      sizes_.batch = std::max<int64_t>(sizes_.batch, rows.size());
    for (auto& rows : found) {
      // Rows of no steps, in groups with fewer.
      rows.resize(sizes_.batch, -1);
      rows_.insert(rows_.end(), rows.begin(), rows.end());
    }
  }

  // In a group.
  int64_t most() const { return sizes_.batch; }
  // Those of a call with these rows alone.
  const StructuredScanSizes& sizes() const { return sizes_; }

  // The arrays of a call, of which it may own some.
  class Call {
   public:
    Call(const void* const* from, int count) { std::copy_n(from, count, all_); }
    const void* const* arrays() const { return all_; }
    Real* own(int place, int64_t count) {
      own_[place] = numbers<Real>(count);
      all_[place] = own_[place].get();
      return own_[place].get();
    }

   private:
    const void* all_[13];
    std::unique_ptr<Real[]> own_[13];
  };

  // The call with zeros in these rows.
  Call without(const void* const* from, int count) const {
    Call call(from, count);
    for (int place = 9; place < count; place++) {
      const int64_t width = width_of(place), all = s_.groups * s_.batch * width;
      Real* to = call.own(place, all);
      std::copy_n(static_cast<const Real*>(from[place]), all, to);
      for (int64_t row : rows_)
        if (row >= 0) std::fill_n(to + row * width, width, Real{0});
    }
    return call;
  }

  // The call with these rows alone.
  Call alone(const void* const* from, int count) const {
    Call call(from, count);
    for (int place = 7; place < count; place++) {
      const int64_t width = width_of(place);
      Real* to = call.own(place, rows_.size() * width);
      for (int64_t row : rows_) {
        if (row < 0)
          std::fill_n(to, width, Real{0});
        else
          std::copy_n(of_row(from[place], row, width), width, to);
        to += width;
      }
    }
    return call;
  }

  std::unique_ptr<Real[]> numbers_for(int64_t width) const {
    return numbers<Real>(rows_.size() * width);
  }

  // Writes these rows of a result.
  void put(const Real* from, int64_t width, void* to) const {
    for (int64_t row : rows_) {
      if (row >= 0)
        std::copy_n(from, width, static_cast<Real*>(to) + row * width);
      from += width;
    }
  }

 private:
  static const Real* of_row(const void* array, int64_t row, int64_t width) {
    return static_cast<const Real*>(array) + row * width;
  }

  // A row's numbers in an argument from the lengths on (core.h).
  int64_t width_of(int place) const {
    const int64_t widths[] = {1,           s_.time,      s_.inputs(),
                              s_.states(), s_.outputs(), s_.states()};
    return widths[place - 7];
  }

  const StructuredScanSizes& s_;
  StructuredScanSizes sizes_;
  std::vector<int64_t> rows_;
};

}  // namespace keras_linrec
