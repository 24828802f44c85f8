// What the passes of the CUDA core over long sequences share: they cut rows
// into tiles, and hand the state from one tile to the next.
//
// A row is cut into tiles of some steps and channels, which fit into shared
// memory, and each thread has one channel of a tile for a piece of consecutive
// steps. Over any steps the scan is a map of the state, h -> product * h + end,
// and the map of steps one after another is a composition of maps:
//
//   1. A block reads its tile, and each thread computes the map of its piece.
//   2. The block publishes the map of the tile, and composes the maps of all
//      tiles before it, which gives the state that enters the tile.
//   3. Each thread goes over its piece again from the right state.
//
// The maps of tiles form a tree: the last of `branches` tiles publishes the map
// of them all, the last of branches^2 tiles that of these, and so on. A block
// reads a few dozen maps however long the sequence is, and always composes the
// same ones in the same order: results are the same in every run.
//
// States, products and sums are float64 whatever the arrays are, as on the CPU:
// with decays close to 1 a state is the sum of a million steps.
#pragma once
#include "cuda/cuda_block.h"

namespace keras_linrec {
namespace cuda {

template <int parts>
struct Number {
  double part[parts];
};

template <int parts>
KERAS_LINREC_DEVICE Number<parts> conjugate(Number<parts> a) {
  if constexpr (parts == 2) a.part[1] = -a.part[1];
  return a;
}

template <int parts>
KERAS_LINREC_DEVICE Number<parts> add(Number<parts> a, Number<parts> b) {
  for (int p = 0; p < parts; p++) a.part[p] += b.part[p];
  return a;
}

template <int parts>
KERAS_LINREC_DEVICE bool is_zero(Number<parts> a) {
  bool zero = true;
  for (int p = 0; p < parts; p++) zero = zero && a.part[p] == 0;
  return zero;
}

// a * b + c
template <int parts>
KERAS_LINREC_DEVICE Number<parts> multiply_add(Number<parts> a, Number<parts> b,
                                               Number<parts> c) {
  if constexpr (parts == 1) {
    return {{a.part[0] * b.part[0] + c.part[0]}};
  } else {
    // In this order the compiler makes four fused operations of it.
    return {{c.part[0] + a.part[0] * b.part[0] - a.part[1] * b.part[1],
             c.part[1] + a.part[0] * b.part[1] + a.part[1] * b.part[0]}};
  }
}

template <int parts>
KERAS_LINREC_DEVICE Number<parts> multiply(Number<parts> a, Number<parts> b) {
  return multiply_add(a, b, Number<parts>{});
}

template <int parts>
KERAS_LINREC_DEVICE Number<parts> power(Number<parts> base, int exponent) {
  Number<parts> result{{1}};
  for (; exponent; exponent >>= 1) {
    if (exponent & 1) result = multiply(base, result);
    base = multiply(base, base);
  }
  return result;
}

// h -> product * h + end, or after a reset h -> end, even if h is NaN.
template <int parts>
struct Map {
  Number<parts> product{{1}}, end{};
  bool is_reset = false;

  // Zero stays zero even if the product of decays has overflowed.
  KERAS_LINREC_DEVICE Number<parts> operator()(Number<parts> state) const {
    if (is_reset || is_zero(state)) return end;
    return multiply_add(product, state, end);
  }
};

template <int parts>
KERAS_LINREC_DEVICE Map<parts> compose(const Map<parts>& later,
                                       const Map<parts>& earlier) {
  if (later.is_reset) return later;
  const Map<parts> linear{later.product, {}};
  return {linear(earlier.product), later(earlier.end), earlier.is_reset};
}

template <class Real, int parts>
struct In {
  const Real* part[parts];

  KERAS_LINREC_DEVICE Number<parts> load(int64_t element) const {
    Number<parts> number;
    for (int p = 0; p < parts; p++) number.part[p] = part[p][element];
    return number;
  }
};

template <class Real, int parts>
struct Out {
  Real* part[parts];

  KERAS_LINREC_DEVICE Number<parts> load(int64_t element) const {
    Number<parts> number;
    for (int p = 0; p < parts; p++) number.part[p] = part[p][element];
    return number;
  }
  KERAS_LINREC_DEVICE void store(int64_t element, Number<parts> number) const {
    for (int p = 0; p < parts; p++)
      part[p][element] = static_cast<Real>(number.part[p]);
  }
};

struct Sizes {
  int64_t groups, batch, time, channels;
  bool reverse;

  KERAS_LINREC_DEVICE int64_t rows() const { return groups * batch; }
};

// How rows are cut into tiles. The tiles of a row and of the same channels are
// a chain.
struct Tiling {
  static constexpr int branches = 32;
  static constexpr int most_threads = 256;

  int width;   // channels of a tile, a power of two
  int shift;   // its logarithm: GPUs have no division
  int pieces;  // threads for each channel
  int length;  // steps of a piece
  int64_t columns, tiles, chains, nodes;

  // A tile of 24 KiB: two blocks fit into the multiprocessors with the least
  // memory, seven into those with the most. The length is odd, so that the
  // threads of a warp read from different banks of shared memory.
  static constexpr int length_of(int bytes) {
    return (24 * 1024 / most_threads / bytes - 1) | 1;
  }

  Tiling(const Sizes& sizes, int bytes) : shift(0) {
    // Memory is read in lines of 32 float32 numbers.
    while (shift < 5 && 1 << shift < sizes.channels) shift++;
    width = 1 << shift;
    length = length_of(bytes);
    const int64_t wanted = (sizes.time + length - 1) / length;
    pieces = most_threads / width;
    if (pieces > 32) pieces = 32;
    if (pieces > wanted) pieces = static_cast<int>(wanted);
    columns = (sizes.channels + width - 1) / width;
    tiles = (sizes.time + steps() - 1) / steps();
    chains = sizes.rows() * columns;
    nodes = 0;
    for (int64_t count = tiles; count; count /= branches) nodes += count;
  }
  KERAS_LINREC_DEVICE int threads() const { return width * pieces; }
  KERAS_LINREC_DEVICE int steps() const { return pieces * length; }
  KERAS_LINREC_DEVICE int channel_of(int thread) const {
    return thread & (width - 1);
  }
  KERAS_LINREC_DEVICE int piece_of(int thread) const { return thread >> shift; }
};

// Memory through which the blocks of a call communicate, on the GPU. The
// counter and the flags are zero before the call.
struct Links {
  unsigned *counter, *flags;
  double* maps;

  template <int parts>
  static Links place(const Tiling& tiling, Memory& memory) {
    unsigned* counter = memory.take<unsigned>(cleared(tiling));
    return {counter, counter + 1,
            memory.take<double>(nodes(tiling) * tiling.width *
                                numbers<parts>())};
  }
  // Of a map.
  template <int parts>
  KERAS_LINREC_DEVICE static int numbers() {
    return 2 * parts + 1;
  }
  // The counter and the flags: an even number, since doubles follow.
  static int64_t cleared(const Tiling& tiling) {
    return (nodes(tiling) + 2) & ~int64_t(1);
  }
  static int64_t nodes(const Tiling& tiling) {
    return tiling.tiles > 1 ? tiling.chains * tiling.nodes : 0;
  }
};

// A tile of an array in shared memory, (steps, width) for each part.
template <class Real, int parts>
using Tile = Out<Real, parts>;

// Neighbouring numbers that a thread moves at once.
template <class Real>
struct alignas(16) Wide {
  static constexpr int count = 16 / sizeof(Real);
  Real number[count];
};

// `Moved` is a number or several.
template <class Moved, class Real, int parts>
KERAS_LINREC_DEVICE void copy(const Tile<Real, parts>& from, int slot,
                              const Out<Real, parts>& to, int64_t element) {
  for (int p = 0; p < parts; p++)
    *reinterpret_cast<Moved*>(to.part[p] + element) =
        *reinterpret_cast<const Moved*>(from.part[p] + slot);
}

// The tile of a block. Steps are counted in the order of the pass, in which the
// gradient is the scan in the other direction.
struct Place {
  int64_t tile, chain, row, group, channel, first, stride, left;
  // The first step among those of all rows, and from a step to the next.
  int64_t first_step;
  int direction;
  int live;  // channels that exist

  KERAS_LINREC_DEVICE Place(const Sizes& sizes, const Tiling& tiling,
                            bool reverse, unsigned number) {
    // The tiles of all chains at one time come before later ones. There are
    // less than 2^31 blocks, and a division of 64 bits is slow.
    const unsigned chains = static_cast<unsigned>(tiling.chains);
    const unsigned columns = static_cast<unsigned>(tiling.columns);
    tile = number / chains;
    chain = number % chains;
    row = static_cast<unsigned>(chain) / columns;
    group = static_cast<unsigned>(row) / static_cast<unsigned>(sizes.batch);
    channel = static_cast<unsigned>(chain) % columns * tiling.width;
    const int64_t taken = tile * tiling.steps();
    left = sizes.time - taken;
    const int64_t rest = sizes.channels - channel;
    live = static_cast<int>(rest < tiling.width ? rest : tiling.width);
    const int64_t step = reverse ? sizes.time - 1 - taken : taken;
    first_step = row * sizes.time + step;
    direction = reverse ? -1 : 1;
    first = first_step * sizes.channels + channel;
    stride = direction * sizes.channels;
  }
};

// What a thread works on, and where: `slot` is its first number in a tile.
struct Share {
  int channel, piece, slot, count;

  KERAS_LINREC_DEVICE Share(const Tiling& tiling, const Place& place,
                            int thread)
      : channel(tiling.channel_of(thread)),
        piece(tiling.piece_of(thread)),
        slot(piece * tiling.length * tiling.width + channel) {
    const int64_t left = place.left - piece * tiling.length;
    count = static_cast<int>(
        left < 0 ? 0 : left < tiling.length ? left : tiling.length);
    if (channel >= place.live) count = 0;
  }
};

// Which steps of a thread's piece are reset, a bit for each: there are at most
// 23. They are read with the tile, so that they take one register afterwards.
struct Marks {
  unsigned bits = 0;

  KERAS_LINREC_DEVICE bool any() const { return bits != 0; }
  KERAS_LINREC_DEVICE bool at(int step) const { return bits >> step & 1; }
};

// Common to the scan and its gradient.
template <class Real, int parts>
struct TilePass {
  static constexpr int most_threads = Tiling::most_threads;
  // Threads for each channel that compose maps of other tiles.
  static constexpr int readers = 4;

  Sizes sizes;
  Tiling tiling;
  bool reverse;
  In<Real, parts> initial;
  const Real* resets = nullptr;  // or a number for each step of each row
  Links links;
  bool wide = false;  // whether numbers are moved several at a time

  // `bytes` is what a step and channel takes in shared memory.
  TilePass(const Sizes& sizes, int bytes, bool reverse)
      : sizes(sizes),
        tiling(sizes, bytes),
        reverse(reverse),
        initial(),
        links() {}

  struct Shared {
    Map<parts>*pieces, *read, *own, *before;
    Number<parts>* entering;
    unsigned* number;
    Marks* marks;
  };

  int threads() const { return tiling.threads(); }
  int64_t blocks() const { return tiling.chains * tiling.tiles; }
  // Numbers of these arrays are moved several at a time, if that fits.
  template <class... Arrays>
  void move(const Arrays&... arrays) {
    wide = sizes.channels % Wide<Real>::count == 0 &&
           (is_aligned(arrays) && ...);
  }

  KERAS_LINREC_DEVICE Shared place_shared(Memory& memory) const {
    const int width = tiling.width;
    return {memory.take<Map<parts>>(tiling.threads()),
            memory.take<Map<parts>>(readers * width),
            memory.take<Map<parts>>(width),
            memory.take<Map<parts>>(width),
            memory.take<Number<parts>>(width),
            memory.take<unsigned>(2),
            memory.take<Marks>((tiling.threads() + 1) / 2 * 2)};
  }
  KERAS_LINREC_DEVICE Tile<Real, parts> place_tile(Memory& memory) const {
    Tile<Real, parts> tile;
    memory.align(sizeof(Wide<Real>));
    for (auto& part : tile.part)
      part = memory.take<Real>(tiling.steps() * tiling.width);
    return tile;
  }
  // The shared memory of a block with this many tiles.
  int64_t bytes_of(int arrays) const {
    Memory memory{nullptr};
    place_shared(memory);
    for (int array = 0; array < arrays; array++) place_tile(memory);
    return memory.used;
  }

  KERAS_LINREC_DEVICE Place find(const Block& block,
                                 const Shared& shared) const {
    block.each(1, [&](int) {
      *shared.number = tiling.tiles > 1 ? draw(links.counter)
                                        : static_cast<unsigned>(block.index);
    });
    return Place(sizes, tiling, reverse, *shared.number);
  }

  // take(moved, slot, element, step) for the thread's part of a tile:
  // neighbouring threads take neighbouring numbers. The type of `moved` is what
  // is to be moved at once.
  template <class Take>
  KERAS_LINREC_DEVICE void for_each_element(const Place& place, int thread,
                                            Take take) const {
    if (wide)
      for_each(Wide<Real>(), Wide<Real>::count, place, thread, take);
    else
      for_each(Real(), 1, place, thread, take);
  }
  template <class Moved>
  KERAS_LINREC_DEVICE void fetch(Moved, const Block& block,
                                 const In<Real, parts>& from, int64_t element,
                                 const Tile<Real, parts>& to, int slot) const {
    for (int p = 0; p < parts; p++)
      block.fetch(reinterpret_cast<const Moved*>(from.part[p] + element),
                  *reinterpret_cast<Moved*>(to.part[p] + slot));
  }
  // visit(slot, is_reset) for each step of a thread's piece; `length` is that
  // of most pieces.
  template <int length, class Visit>
  KERAS_LINREC_DEVICE void for_each_step(const Share& share, Marks marks,
                                         Visit visit) const {
    int slot = share.slot;
    // Most pieces are whole and have no resets: their steps have no choice.
    if (share.count == length && !marks.any()) {
      KERAS_LINREC_UNROLL
      for (int step = 0; step < length; step++, slot += tiling.width)
        visit(slot, false);
      return;
    }
    KERAS_LINREC_NO_UNROLL
    for (int step = 0; step < share.count; step++, slot += tiling.width)
      visit(slot, marks.at(step));
  }
  KERAS_LINREC_DEVICE int64_t state_of(const Place& place, int channel) const {
    return place.row * sizes.channels + place.channel + channel;
  }
  KERAS_LINREC_DEVICE Number<parts> fixed_decay(const In<Real, parts>& decay,
                                                const Place& place,
                                                const Share& share) const {
    return decay.load(place.group * sizes.channels + place.channel +
                      share.channel);
  }
  KERAS_LINREC_DEVICE void read_marks(const Place& place, int thread,
                                      const Shared& shared) const {
    const Share share(tiling, place, thread);
    const int64_t first = place.first_step +
                          place.direction * share.piece * tiling.length;
    unsigned bits = 0;
    KERAS_LINREC_NO_UNROLL
    for (int step = 0; resets && step < share.count; step++)
      if (resets[first + place.direction * step] != Real{0}) bits |= 1u << step;
    shared.marks[thread] = {bits};
  }
  // Whether a thread's piece ends with the last step.
  KERAS_LINREC_DEVICE bool ends(const Place& place, const Share& share) const {
    return share.count &&
           share.piece * tiling.length + share.count == place.left;
  }

  // The state that enters a thread's piece.
  KERAS_LINREC_DEVICE Number<parts> entering(const Shared& shared,
                                             int thread) const {
    return shared.pieces[thread](
        shared.entering[tiling.channel_of(thread)]);
  }

  // From the maps of the pieces: those of everything before them in the tile,
  // and the state that enters the tile.
  KERAS_LINREC_DEVICE void enter(const Block& block, const Place& place,
                                 const Shared& shared) const {
    block.each(place.live, [&](int channel) {
      Map<parts> before;
      for (int piece = 0; piece < tiling.pieces; piece++) {
        Map<parts>& here = shared.pieces[piece * tiling.width + channel];
        const Map<parts> after = compose(here, before);
        here = before;
        before = after;
      }
      shared.own[channel] = before;
      shared.before[channel] = {};
    });
    if (tiling.tiles > 1) look_back(block, place, shared);
    block.each(place.live, [&](int channel) {
      shared.entering[channel] =
          shared.before[channel](initial.load(state_of(place, channel)));
    });
  }

 private:
  template <class Array>
  static bool is_aligned(const Array& array) {
    for (const Real* part : array.part)
      if (reinterpret_cast<uintptr_t>(part) % sizeof(Wide<Real>)) return false;
    return true;
  }
  // `count` numbers at a time.
  template <class Moved, class Take>
  KERAS_LINREC_DEVICE void for_each(Moved moved, int count, const Place& place,
                                    int thread, Take take) const {
    const int lanes = tiling.width / count;
    const int channel = (thread & (lanes - 1)) * count;
    if (channel >= place.live) return;
    const int steps = static_cast<int>(
        place.left < tiling.steps() ? place.left : tiling.steps());
    const int apart = tiling.pieces * count;
    int step = thread * count >> tiling.shift;
    int slot = step * tiling.width + channel;
    int64_t element = place.first + step * place.stride + channel;
    for (; step < steps; step += apart) {
      take(moved, slot, element, step);
      slot += apart * tiling.width;
      element += apart * place.stride;
    }
  }
  // A tile publishes the maps of all nodes of which it is the last.
  KERAS_LINREC_DEVICE void look_back(const Block& block, const Place& place,
                                     const Shared& shared) const {
    int64_t level = place.chain * tiling.nodes, node = place.tile;
    bool last = true;
    for (int64_t count = tiling.tiles; count; count /= tiling.branches) {
      if (last) publish(block, place, shared, level + node);
      const int older = static_cast<int>(node % tiling.branches);
      if (older)
        compose_older(block, place, shared, level + node - older, older, last);
      last = last && older == tiling.branches - 1;
      node /= tiling.branches;
      level += count;
    }
  }
  KERAS_LINREC_DEVICE void publish(const Block& block, const Place& place,
                                   const Shared& shared, int64_t node) const {
    block.each(place.live, [&](int channel) {
      double* to = maps_of(node) + channel;
      for (int p = 0; p < parts; p++) {
        to[p * tiling.width] = shared.own[channel].product.part[p];
        to[(parts + p) * tiling.width] = shared.own[channel].end.part[p];
      }
      to[2 * parts * tiling.width] = shared.own[channel].is_reset;
    });
    block.each(1, [&](int) { raise(links.flags + node); });
  }
  // Adds the maps of the older nodes under the same parent.
  KERAS_LINREC_DEVICE void compose_older(const Block& block,
                                         const Place& place,
                                         const Shared& shared, int64_t first,
                                         int older, bool last) const {
    constexpr int length = Tiling::branches / readers;
    block.each(older, [&](int node) { wait_for(links.flags + first + node); });
    block.each(readers * tiling.width, [&](int thread) {
      const int channel = tiling.channel_of(thread);
      if (channel >= place.live) return;
      const int begin = tiling.piece_of(thread) * length;
      Map<parts> total;
      KERAS_LINREC_UNROLL_BY_8
      for (int node = begin; node < begin + length; node++)
        if (node < older) total = compose(read(first + node, channel), total);
      shared.read[thread] = total;
    });
    block.each(place.live, [&](int channel) {
      Map<parts> total;
      for (int reader = 0; reader < readers; reader++)
        total = compose(shared.read[reader * tiling.width + channel], total);
      shared.before[channel] = compose(shared.before[channel], total);
      if (last) shared.own[channel] = compose(shared.own[channel], total);
    });
  }
  KERAS_LINREC_DEVICE Map<parts> read(int64_t node, int channel) const {
    const double* from = maps_of(node) + channel;
    Map<parts> map;
    for (int p = 0; p < parts; p++) {
      map.product.part[p] = from[p * tiling.width];
      map.end.part[p] = from[(parts + p) * tiling.width];
    }
    map.is_reset = from[2 * parts * tiling.width] != 0;
    return map;
  }
  KERAS_LINREC_DEVICE double* maps_of(int64_t node) const {
    return links.maps + node * Links::numbers<parts>() * tiling.width;
  }
};

}  // namespace cuda
}  // namespace keras_linrec
