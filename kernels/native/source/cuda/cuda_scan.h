// The linear scan on a GPU, and its gradient: the work of one block of threads.
// Inputs are read once and outputs written once.
#pragma once
#include "cuda/cuda_tiles.h"

namespace keras_linrec {
namespace cuda {

template <class Real, int parts, bool per_step>
struct Scan : TilePass<Real, parts> {
  using N = Number<parts>;
  static constexpr int bytes = (1 + per_step) * parts * sizeof(Real);
  static constexpr int length = Tiling::length_of(bytes);
  In<Real, parts> decay{}, inputs{};
  Out<Real, parts> outputs{}, final_state{};

  explicit Scan(const Sizes& sizes)
      : TilePass<Real, parts>(sizes, bytes, sizes.reverse) {}

  int64_t shared_bytes() const { return this->bytes_of(1 + per_step); }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const Tiling& tiling = this->tiling;
    Memory memory{block.memory};
    const auto shared = this->place_shared(memory);
    const auto states = this->place_tile(memory);
    const auto decays = per_step ? this->place_tile(memory) : states;
    const Place place = this->find(block, shared);
    block.each_and_receive(tiling.threads(), [&](int thread) {
      this->for_each_element(
          place, thread, [&](auto moved, int slot, int64_t element, int) {
            this->fetch(moved, block, inputs, element, states, slot);
            if (per_step)
              this->fetch(moved, block, decay, element, decays, slot);
          });
      this->read_marks(place, thread, shared);
    });
    block.each(tiling.threads(), [&](int thread) {
      const Share share(tiling, place, thread);
      if (share.channel >= place.live) return;
      const N fixed =
          per_step ? N{} : this->fixed_decay(decay, place, share);
      const Marks marks = shared.marks[thread];
      Map<parts> map;
      map.is_reset = marks.any();
      if (!per_step) map.product = power(fixed, share.count);
      this->template for_each_step<length>(share, marks, [&](int slot,
                                                             bool is_reset) {
        const N now = per_step ? decays.load(slot) : fixed;
        const N input = states.load(slot);
        map.end = is_reset ? input : multiply_add(now, map.end, input);
        if (per_step) map.product = multiply(now, map.product);
      });
      shared.pieces[thread] = map;
    });
    this->enter(block, place, shared);
    block.each(tiling.threads(), [&](int thread) {
      const Share share(tiling, place, thread);
      if (share.count == 0) return;
      const N fixed =
          per_step ? N{} : this->fixed_decay(decay, place, share);
      const Marks marks = shared.marks[thread];
      N state = this->entering(shared, thread);
      this->template for_each_step<length>(share, marks, [&](int slot,
                                                             bool is_reset) {
        const N now = per_step ? decays.load(slot) : fixed;
        const N input = states.load(slot);
        state = is_reset ? input : multiply_add(now, state, input);
        states.store(slot, state);
      });
      if (this->ends(place, share))
        final_state.store(this->state_of(place, share.channel), state);
    });
    block.each(tiling.threads(), [&](int thread) {
      this->for_each_element(
          place, thread, [&](auto moved, int slot, int64_t element, int) {
            copy<decltype(moved)>(states, slot, outputs, element);
          });
    });
  }
};

// The gradient goes from the last step to the first. With e_t the cotangent of
// inputs_t, the carry is a_t e_t: the map of a step is c -> a_t c + a_t g_t, g
// the cotangents of the outputs. For a time-invariant decay it leaves a sum for
// each row, tile and channel, which `AddDecays` adds up. The carry before a
// reset is zero, and that step's decay has no cotangent.
template <class Real, int parts, bool per_step>
struct ScanBackward : TilePass<Real, parts> {
  using N = Number<parts>;
  static constexpr int bytes = (2 + per_step) * parts * sizeof(Real);
  static constexpr int length = Tiling::length_of(bytes);
  In<Real, parts> decay{}, outputs{}, first_state{}, d_outputs{};
  Out<Real, parts> d_decay{}, d_inputs{}, d_initial{};
  Out<double, parts> sums{};

  explicit ScanBackward(const Sizes& sizes)
      : TilePass<Real, parts>(sizes, bytes, !sizes.reverse) {}

  int64_t shared_bytes() const { return this->bytes_of(2 + per_step); }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const Tiling& tiling = this->tiling;
    Memory memory{block.memory};
    const auto shared = this->place_shared(memory);
    const auto carries = this->place_tile(memory);
    const auto before = this->place_tile(memory);
    const auto decays = per_step ? this->place_tile(memory) : carries;
    const Place place = this->find(block, shared);
    block.each_and_receive(tiling.threads(), [&](int thread) {
      this->for_each_element(
          place, thread, [&](auto moved, int slot, int64_t element, int step) {
            this->fetch(moved, block, d_outputs, element, carries, slot);
            if (per_step)
              this->fetch(moved, block, decay, element, decays, slot);
            if (step + 1 < place.left)
              this->fetch(moved, block, outputs, element + place.stride, before,
                          slot);
            else
              this->fetch(moved, block, first_state,
                          this->state_of(place, tiling.channel_of(slot)),
                          before, slot);
          });
      this->read_marks(place, thread, shared);
    });
    block.each(tiling.threads(), [&](int thread) {
      const Share share(tiling, place, thread);
      if (share.channel >= place.live) return;
      const N fixed =
          per_step ? N{} : conjugate(this->fixed_decay(decay, place, share));
      const Marks marks = shared.marks[thread];
      Map<parts> map;
      map.is_reset = marks.any();
      if (!per_step) map.product = power(fixed, share.count);
      this->template for_each_step<length>(share, marks, [&](int slot,
                                                             bool is_reset) {
        const N now = per_step ? conjugate(decays.load(slot)) : fixed;
        map.end = is_reset ? N{}
                           : multiply(now, add(carries.load(slot), map.end));
        if (per_step) map.product = multiply(now, map.product);
      });
      shared.pieces[thread] = map;
    });
    this->enter(block, place, shared);
    block.each(tiling.threads(), [&](int thread) {
      const Share share(tiling, place, thread);
      if (share.channel >= place.live) return;
      const N fixed =
          per_step ? N{} : conjugate(this->fixed_decay(decay, place, share));
      const Marks marks = shared.marks[thread];
      N carry = this->entering(shared, thread), sum{};
      this->template for_each_step<length>(share, marks, [&](int slot,
                                                             bool is_reset) {
        const N now = per_step ? conjugate(decays.load(slot)) : fixed;
        const N d_input = add(carries.load(slot), carry);
        const N state = conjugate(before.load(slot));
        carries.store(slot, d_input);
        if (per_step)
          decays.store(slot, is_reset ? N{} : multiply(d_input, state));
        else if (!is_reset)
          sum = multiply_add(d_input, state, sum);
        carry = multiply(now, d_input);
        if (is_reset) carry = {};
      });
      if (this->ends(place, share))
        d_initial.store(this->state_of(place, share.channel), carry);
      shared.pieces[thread].end = sum;
    });
    block.each(tiling.threads(), [&](int thread) {
      this->for_each_element(
          place, thread, [&](auto moved, int slot, int64_t element, int) {
            copy<decltype(moved)>(carries, slot, d_inputs, element);
            if (per_step)
              copy<decltype(moved)>(decays, slot, d_decay, element);
          });
    });
    if (per_step) return;
    block.each(place.live, [&](int channel) {
      N sum{};
      for (int piece = 0; piece < tiling.pieces; piece++)
        sum = add(sum, shared.pieces[piece * tiling.width + channel].end);
      const int64_t to =
          (place.row * tiling.tiles + place.tile) * this->sizes.channels +
          place.channel + channel;
      sums.store(to, sum);
    });
  }
};

// The sum over the rows of a group and the tiles of a row, always in the same
// order.
template <class Real, int parts>
struct AddDecays {
  static constexpr int most_threads = 1024;

  int64_t groups, count, channels;  // `count` numbers in each sum
  int width, pieces;
  Out<double, parts> sums;
  Out<Real, parts> d_decay;

  AddDecays(const Sizes& sizes, const Tiling& tiling,
            const Out<double, parts>& sums, const Out<Real, parts>& d_decay)
      : groups(sizes.groups),
        count(sizes.batch * tiling.tiles),
        channels(sizes.channels),
        width(tiling.width),
        pieces(width < 8 ? 128 : most_threads / width),
        sums(sums),
        d_decay(d_decay) {}

  int threads() const { return width * pieces; }
  int64_t blocks() const { return groups * ((channels + width - 1) / width); }
  int64_t shared_bytes() const { return threads() * sizeof(Number<parts>); }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    auto* partial = reinterpret_cast<Number<parts>*>(block.memory);
    const int64_t columns = (channels + width - 1) / width;
    const int64_t group = block.index / columns;
    const int64_t first = block.index % columns * width;
    const int64_t rest = channels - first;
    const int live = static_cast<int>(rest < width ? rest : width);
    block.each(width * pieces, [&](int thread) {
      const int channel = thread % width;
      if (channel >= live) return;
      Number<parts> sum{};
      KERAS_LINREC_UNROLL_BY_8
      for (int64_t i = thread / width; i < count; i += pieces)
        sum = add(sum,
                  sums.load((group * count + i) * channels + first + channel));
      partial[thread] = sum;
    });
    block.each(live, [&](int channel) {
      Number<parts> sum{};
      for (int piece = 0; piece < pieces; piece++)
        sum = add(sum, partial[piece * width + channel]);
      d_decay.store(group * channels + first + channel, sum);
    });
  }
};

}  // namespace cuda
}  // namespace keras_linrec
