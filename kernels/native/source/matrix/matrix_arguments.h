// The arguments of scans of matrix states.
#pragma once
#include <cmath>
#include <cstdint>

#include "base/arrays.h"
#include "base/resets.h"

namespace keras_linrec {
namespace matrix {

struct Sizes {
  int64_t batch, time, products, query_heads, key_heads, heads, key_dim,
      value_dim;
  int64_t decays;           // of a step: 0, 1 or one for each key channel
  int64_t erased, written;  // heads that have the argument: all, or 0
  int64_t stretch;          // steps from one checkpoint to the next
  bool logarithmic, resets;

  Sizes(int flags, const int64_t* sizes)
      : batch(sizes[0] * sizes[1]),
        time(sizes[2]),
        products(sizes[3]),
        query_heads(sizes[4]),
        key_heads(sizes[5]),
        heads(sizes[6]),
        key_dim(sizes[7]),
        value_dim(sizes[8]),
        decays(sizes[9]),
        erased(sizes[10]),
        written(sizes[11]),
        stretch(sizes[12]),
        logarithmic(flags & kKerasLinrecLogarithmic),
        resets(flags & kKerasLinrecResets) {}

  bool valid() const {
    const auto is_shared = [&](int64_t shared) {
      return shared > 0 && heads % shared == 0;
    };
    return batch >= 0 && time > 0 && products > 0 && heads > 0 &&
           is_shared(query_heads) && is_shared(key_heads) && key_dim > 0 &&
           value_dim > 0 && (decays < 2 || decays == key_dim) &&
           (erased == 0 || erased == heads) &&
           (written == 0 || written == heads) && stretch > 0;
  }
  int64_t rows() const { return time * products; }
  int64_t stretches() const { return (time + stretch - 1) / stretch; }
  int64_t state() const { return key_dim * value_dim; }
  bool of_channels() const { return decays > 1; }
};

// The arrays that belong to one head in one row of the batch. A row of a head
// is one product of a step.
template <class Real>
struct Head {
  const Sizes* sizes;
  int64_t batch, head;
  const Real* queries;
  const Real* keys;
  const Real* values;
  const Real* decay;
  const Real* erase;
  const Real* write;
  const Real* marks;
  const Real* initial_state;

  // `from` has the arrays of a call, in order.
  Head(const Sizes& s, int64_t batch, int64_t head, const void* const* from)
      : sizes(&s), batch(batch), head(head) {
    const auto at = [&](int which, int64_t offset) {
      return static_cast<const Real*>(from[which]) + offset;
    };
    queries = at(0, query_offset(0));
    keys = at(1, key_offset(0));
    values = at(2, value_offset(0));
    decay = at(3, decay_offset(0));
    erase = s.erased ? at(4, strength_offset(0)) : nullptr;
    write = s.written ? at(5, strength_offset(0)) : nullptr;
    marks = s.resets ? at(6, batch * s.time) : nullptr;
    initial_state = at(7, state_offset());
  }

  // Where numbers of a step, or of a row, are in their arrays.
  int64_t query_offset(int64_t step) const {
    const int64_t shared = head / (sizes->heads / sizes->query_heads);
    return ((batch * sizes->time + step) * sizes->query_heads + shared) *
           sizes->key_dim;
  }
  int64_t key_offset(int64_t row) const {
    const int64_t shared = head / (sizes->heads / sizes->key_heads);
    return ((batch * sizes->rows() + row) * sizes->key_heads + shared) *
           sizes->key_dim;
  }
  int64_t value_offset(int64_t row) const {
    return strength_offset(row) * sizes->value_dim;
  }
  int64_t output_offset(int64_t step) const {
    return ((batch * sizes->time + step) * sizes->heads + head) *
           sizes->value_dim;
  }
  int64_t decay_offset(int64_t step) const {
    return ((batch * sizes->time + step) * sizes->heads + head) *
           sizes->decays;
  }
  int64_t strength_offset(int64_t row) const {
    return (batch * sizes->rows() + row) * sizes->heads + head;
  }
  int64_t state_offset() const {
    return (batch * sizes->heads + head) * sizes->state();
  }
  // In checkpoints (batch, blocks, heads, key_dim, value_dim).
  int64_t checkpoint_offset(int64_t stretch) const {
    const int64_t count = sizes->time / sizes->stretch + 2;
    return ((batch * count + stretch) * sizes->heads + head) * sizes->state();
  }

  double strength(const Real* strengths, int64_t row, double otherwise) const {
    return strengths ? strengths[row * sizes->heads] : otherwise;
  }
  bool is_reset(int64_t step) const {
    return Resets<Real>{marks}.at(step);
  }
  bool starts_step(int64_t row) const { return row % sizes->products == 0; }
  bool ends_step(int64_t row) const {
    return row % sizes->products == sizes->products - 1;
  }
};

}  // namespace matrix
}  // namespace keras_linrec
